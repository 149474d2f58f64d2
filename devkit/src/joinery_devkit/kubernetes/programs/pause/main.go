// The first process of every pod: keeps the pod's namespaces and buries what others leave behind.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if buried, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); buried <= 0 {
				break
			}
		}
	}
}
