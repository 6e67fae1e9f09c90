// nmeter stands in for busybox's, which Debian's busybox does not have. The specs call `nmeter -d0 '%3t'` for the
// time of day with its milliseconds: a line each time, as fast as they are read.
package main

import (
	"fmt"
	"os"
	"slices"
	"time"
)

func main() {
	if !slices.Equal(os.Args[1:], []string{"-d0", "%3t"}) {
		fmt.Fprintln(os.Stderr, "this nmeter knows only: nmeter -d0 '%3t'")
		os.Exit(1)
	}
	for {
		if _, err := fmt.Println(time.Now().Format("15:04:05.000")); err != nil {
			os.Exit(1)
		}
	}
}
