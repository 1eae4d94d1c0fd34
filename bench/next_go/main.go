// Command next measures the ids that a pool hands out: SERVER CALLERS SECONDS.
// It prints ids a second.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	idalloc "example.com/idalloc/client/go"
)

func main() {
	callers, _ := strconv.Atoi(os.Args[2])
	seconds, _ := strconv.ParseFloat(os.Args[3], 64)
	client, err := idalloc.New(os.Args[1])
	if err != nil {
		fail(err)
	}
	ids := client.Pool("next")
	measure(ids, callers, time.Second) // ranges grow
	fmt.Printf("%.0f\n", measure(ids, callers, time.Duration(seconds*float64(time.Second))))
}

func measure(ids *idalloc.Pool, callers int, limit time.Duration) float64 {
	var done atomic.Bool
	var taken atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	time.AfterFunc(limit, func() { done.Store(true) })
	for range callers {
		group.Go(func() {
			var count int64
			for ; !done.Load(); count++ {
				if _, err := ids.Next(context.Background()); err != nil {
					fail(err)
				}
			}
			taken.Add(count)
		})
	}
	group.Wait()
	return float64(taken.Load()) / time.Since(start).Seconds()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
