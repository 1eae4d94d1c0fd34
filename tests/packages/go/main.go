// Command consumer uses the published package as any program would, on a server
// with TLS and a token.
//
//	consumer calls SERVER          every call; prints what it got as JSON
//	consumer pool SERVER TOTAL     prints ids of a pool, a line each, and "error REASON"
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	idalloc "example.com/idalloc/client/go"
	"example.com/idalloc/client/go/idallocv1"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	var mu sync.Mutex
	received := map[string]int64{}
	client, err := idalloc.New(arguments[1],
		idalloc.WithTLS(idalloc.TLS{CAFile: os.Getenv("CA"), CertFile: os.Getenv("CERT"), KeyFile: os.Getenv("KEY")}),
		token(),
		idalloc.WithTimeout(30*time.Second),
		idalloc.WithObserver(func(event idalloc.Event) {
			mu.Lock()
			defer mu.Unlock()
			received[event.Method] += event.IDs
		}))
	if err != nil {
		return err
	}
	defer client.Close()
	if arguments[0] == "pool" {
		return pool(ctx, client, arguments[2])
	}
	got, err := calls(ctx, client)
	if err != nil {
		return err
	}
	got["received"] = received
	return json.NewEncoder(os.Stdout).Encode(got)
}

// token returns the option for the file that TOKEN_FILE names, or an option
// without effect.
func token() idalloc.Option {
	if file := os.Getenv("TOKEN_FILE"); file != "" {
		return idalloc.WithTokenFile(file)
	}
	return idalloc.WithDialOptions()
}

func calls(ctx context.Context, client *idalloc.Client) (map[string]any, error) {
	got := map[string]any{}
	_, err := client.Stubs().Sequences.CreateSequence(ctx, &idallocv1.CreateSequenceRequest{
		Sequence: &idallocv1.Sequence{Name: "invoices", Format: "INV-{value:04d}"},
	})
	if err != nil {
		return nil, idalloc.ErrorOf(err)
	}
	texts, err := client.AllocateRange(ctx, "invoices", 2, idalloc.WithTexts())
	if err != nil {
		return nil, err
	}
	got["texts"] = texts.Texts

	once := idalloc.WithRequestID(idalloc.NewRequestID())
	first, err1 := client.AllocateRange(ctx, "orders", 100, once)
	again, err2 := client.AllocateRange(ctx, "orders", 100, once)
	got["range"] = []int64{first.First, first.Last, again.First, again.Last}

	batch, err3 := client.BatchAllocateRanges(ctx, []idalloc.RangeRequest{
		{Sequence: "orders", Count: 10}, {Sequence: "", Count: 1}, {Sequence: "lines", Count: 5},
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	got["batch"] = []any{batch[0].Range.First, errors.Is(batch[1].Err, idalloc.ErrInvalidRequest), batch[2].Range.Last}

	docIDs, err := client.DocIDs(ctx, 3)
	if err != nil {
		return nil, err
	}
	got["doc_ids"] = docIDs
	if got["stream"], err = streamed(ctx, client); err != nil {
		return nil, err
	}
	got["allocate_stream"], err = pipelined(ctx, client)
	if older := idalloc.Reason("UNIMPLEMENTED"); errors.Is(err, older) { // an older server
		got["allocate_stream"] = older
	} else if err != nil {
		return nil, err
	}
	_, err = client.AllocateRange(ctx, "orders", 1<<40)
	var failed *idalloc.Error
	if errors.As(err, &failed) {
		got["error"] = []any{failed.Reason, failed.Metadata["field"], len(failed.Details) > 1}
	}
	return got, nil
}

// streamed returns how many ids and document ids two streams brought.
func streamed(ctx context.Context, client *idalloc.Client) (counts [2]int64, err error) {
	for ids, err := range client.StreamRanges(ctx, "events", 50_000, 7_000) {
		if err != nil {
			return counts, err
		}
		counts[0] += ids.Count
	}
	for run, err := range client.StreamDocIDs(ctx, 50_000) {
		if err != nil {
			return counts, err
		}
		for range run.All() {
			counts[1]++
		}
	}
	return counts, nil
}

// pipelined returns how many distinct ids 16 goroutines got over one stream.
func pipelined(ctx context.Context, client *idalloc.Client) (int, error) {
	stream := client.AllocateStream()
	defer stream.Close()
	var mu sync.Mutex
	var all []int64
	var failures []error
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 20 {
				ids, err := stream.AllocateRange(ctx, "tasks", 2)
				_, failed := stream.DocIDs(ctx, 1)
				mu.Lock()
				all = slices.AppendSeq(all, ids.All())
				failures = append(failures, err, failed)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(all)
	return len(slices.Compact(all)), errors.Join(failures...)
}

// pool prints the ids that 8 goroutines take, until there are total.
func pool(ctx context.Context, client *idalloc.Client, total string) error {
	count, err := strconv.Atoi(total)
	if err != nil {
		return err
	}
	const goroutines = 8
	ids, out := client.Pool("orders"), bufio.NewWriter(os.Stdout)
	defer ids.Close()
	var mu sync.Mutex
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for left := count / goroutines; left > 0; {
				id, err := ids.Next(ctx)
				mu.Lock()
				if err == nil {
					left--
					fmt.Fprintln(out, id)
				} else {
					fmt.Fprintln(out, "error", reason(err))
				}
				if err != nil || left%1000 == 0 {
					out.Flush() // the test sees the progress
				}
				mu.Unlock()
				if left%10 == 0 {
					time.Sleep(time.Millisecond) // ids last over the restart
				}
			}
		})
	}
	group.Wait()
	return out.Flush()
}

// reason returns the reason of an error of the package's type, or "untyped".
func reason(err error) idalloc.Reason {
	var failed *idalloc.Error
	if errors.As(err, &failed) {
		return failed.Reason
	}
	return "untyped"
}
