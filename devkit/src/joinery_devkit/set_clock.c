/* A clock of the wall that can be set while a process runs, as on a machine: CLOCK_REALTIME and its waits follow it,
   CLOCK_MONOTONIC does not. C11's cnd_timedwait, which librdkafka calls, is one of these waits: fakers that leave it
   out make each of its waits end at once, or never. The file that JOINERY_CLOCK_OFFSET names has the offset in nanoseconds (8 bytes). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND = 1000000000, TURN = 20000000;
static volatile int64_t *offset;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("JOINERY_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
}
static int64_t nanoseconds(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }
static struct timespec spec(int64_t at) { return (struct timespec){at / SECOND, at % SECOND}; }
static int64_t real_now(void) { struct timespec at; syscall(SYS_clock_gettime, CLOCK_REALTIME, &at); return nanoseconds(&at); }
static int64_t now(void) { return real_now() + (offset ? *offset : 0); }

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) { *at = spec(now()); return 0; }
    return syscall(SYS_clock_gettime, clock, at);
}
int gettimeofday(struct timeval *at, void *zone) {
    (void)zone; int64_t n = now(); at->tv_sec = n / SECOND; at->tv_usec = n % SECOND / 1000; return 0;
}
time_t time(time_t *at) { time_t n = now() / SECOND; if (at) *at = n; return n; }
int timespec_get(struct timespec *at, int base) { *at = spec(now()); return base; }

/* A wait ends when the set clock reaches its time, whenever the clock is set: so it is done in turns. `ENDED` says that
   a turn ended for another reason than its time. */
#define IN_TURNS(WAIT, ENDED) \
    for (;;) { \
        int64_t left = nanoseconds(until) - now(); \
        struct timespec turn = spec(real_now() + (left < 0 ? 0 : left < TURN ? left : TURN)); \
        int ended = WAIT; \
        if (ENDED || left <= TURN) return ended; \
    }
#define NEXT(NAME, TYPE) \
    static TYPE; \
    if (!wait) wait = dlsym(RTLD_NEXT, NAME)

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!wait) wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    /* A condition may be on the monotonic clock: glibc keeps that in bit 1 of the tenth word. */
    if (((unsigned *)condition)[9] & 2) return wait(condition, mutex, until);
    IN_TURNS(wait(condition, mutex, &turn), ended != ETIMEDOUT)
}
int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
    NEXT("cnd_timedwait", int (*wait)(cnd_t *, mtx_t *, const struct timespec *));
    IN_TURNS(wait(condition, mutex, &turn), ended != thrd_timedout)
}
int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    NEXT("sem_timedwait", int (*wait)(sem_t *, const struct timespec *));
    IN_TURNS(wait(semaphore, &turn), ended == 0 || errno != ETIMEDOUT)
}
int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    NEXT("pthread_mutex_timedlock", int (*wait)(pthread_mutex_t *, const struct timespec *));
    IN_TURNS(wait(mutex, &turn), ended != ETIMEDOUT)
}
