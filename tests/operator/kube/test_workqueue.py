import asyncio

from joinery_operator.kube.workqueue import WorkQueue, WorkQueueFeed


def test_keys_come_in_order_and_once():
    keys = WorkQueue()
    for key in ("a", "b", "a", "c", "b"):
        keys.add(key)
    assert [keys.take(0.0) for _ in range(4)] == ["a", "b", "c", None]


def test_one_worker_at_a_time_and_one_more_look_for_whatever_came_meanwhile():
    keys = WorkQueue()
    keys.add("a")
    assert keys.take(0.0) == "a"
    keys.add("a")
    keys.add("a")
    assert keys.take(0.0) is None
    keys.finish("a", 1.0)
    assert keys.take(1.0) == "a"
    keys.finish("a", 1.0)
    assert keys.take(1.0) is None


def test_a_busy_key_does_not_keep_others_waiting():
    keys = WorkQueue()
    keys.add("busy")
    keys.add("other")
    assert keys.take(0.0) == "busy"
    keys.add("busy")
    keys.finish("busy", 0.0)
    assert [keys.take(0.0), keys.take(0.0)] == ["other", "busy"]


def test_the_last_look_says_when_the_next_is_due():
    keys = WorkQueue()
    keys.add("a")
    keys.take(0.0)
    keys.finish("a", 0.0, again_after=10.0)
    assert keys.next_due() == 10.0
    keys.add("a")  # something happens before
    keys.take(3.0)
    keys.finish("a", 3.0, again_after=60.0)
    assert keys.next_due() == 63.0
    assert keys.take(62.9) is None
    assert keys.take(63.0) == "a"
    keys.finish("a", 63.0)
    assert keys.next_due() is None


def test_failures_are_tried_again_ever_later_and_success_begins_anew():
    keys = WorkQueue()
    delays, now = [], 0.0
    keys.add("a")
    for _ in range(10):
        assert keys.take(now) == "a"
        delays.append(keys.retry("a", now))
        now += delays[-1]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == 120.0
    keys.take(now)
    keys.finish("a", now)
    keys.add("a")
    keys.take(now)
    assert keys.retry("a", now) == 0.5


def test_a_failure_does_not_delay_what_time_alone_makes_due():
    keys = WorkQueue()
    keys.add("a")
    for again_after, delay in ((None, 0.5), (60.0, 1.0), (1.5, 1.5), (3.0, 3.0)):
        keys.take(1000.0)
        assert keys.retry("a", 0.0, again_after) == delay


def test_what_runs_is_known_with_its_start():
    keys = WorkQueue()
    keys.add("a")
    keys.take(7.0)
    assert keys.running() == {"a": 7.0}
    keys.finish("a", 8.0)
    assert keys.running() == {}


def test_waiting_workers_get_keys_that_are_added_and_an_end_when_it_closes():
    async def run():
        feed = WorkQueueFeed(lambda: 0.0)
        workers = [asyncio.create_task(feed.take()) for _ in range(3)]
        await asyncio.sleep(0)
        feed.add("a")
        feed.add("b")
        done, _ = await asyncio.wait(workers[:2], timeout=60)
        assert {task.result() for task in done} == {"a", "b"}
        feed.close()
        assert await workers[2] is None

    asyncio.run(run())


def test_a_waiting_worker_wakes_for_a_timed_key():
    async def run():
        loop = asyncio.get_running_loop()
        feed = WorkQueueFeed(loop.time)
        feed.add("a")
        await feed.take()
        feed.finish("a", again_after=0.01)
        return await asyncio.wait_for(feed.take(), 5)

    assert asyncio.run(run()) == "a"
