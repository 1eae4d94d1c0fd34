package idalloc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// broken is a row of the table "what a broken connection looks like".
type broken struct {
	Name, When, Do, Text string
	Code                 http2.ErrCode
}

func (b broken) serve(conn *net.TCPConn) {
	defer conn.Close()
	io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
	framer := http2.NewFramer(conn, conn)
	nextCall := func() (stream uint32) {
		for frame, err := framer.ReadFrame(); err == nil; frame, err = framer.ReadFrame() {
			if frame.Header().Type == http2.FrameHeaders {
				return frame.Header().StreamID
			}
		}
		return 0
	}
	if b.Do == "text" {
		conn.Write([]byte(b.Text))
		return
	}
	framer.WriteSettings()
	framer.WriteSettingsAck()
	stream := uint32(0)
	if b.When == "call" {
		stream = nextCall()
	}
	switch b.Do {
	case "goaway":
		framer.WriteGoAway(0, b.Code, nil)
		nextCall()
	case "rst":
		framer.WriteRSTStream(stream, b.Code)
		nextCall()
	case "reset":
		conn.SetLinger(0)
	}
}

// client returns a client whose first connections break, and their number.
func (b broken) client(t *testing.T, connections int) (*Client, *atomic.Int64) {
	var count atomic.Int64
	_, address := newService(nil).replica(t, "127.0.0.1:0")
	return open(t, front(t, func(number int, conn *net.TCPConn) string {
		if count.Add(1); number > connections {
			return address
		}
		b.serve(conn)
		return ""
	}), WithTimeout(30*time.Second)), &count
}

func TestABrokenTransportIsUnreachable(t *testing.T) {
	var table []broken
	data, err := os.ReadFile("../../tests/support/broken_transports.json")
	if err = errors.Join(err, json.Unmarshal(data, &table)); err != nil {
		t.Fatal(err)
	}
	var rows sync.WaitGroup
	for _, row := range table {
		rows.Go(func() { t.Run(row.Name, row.test) })
	}
	rows.Wait()
}

func (b broken) test(t *testing.T) {
	if !b.isUnreachable(t, 2*time.Second) && !b.isUnreachable(t, time.Minute) { // a busy machine needs longer
		t.Error("no connection broke in time")
	}
	client, _ := b.client(t, 2)
	allocated, unary := client.AllocateRange(t.Context(), "orders", 2)
	ids, stream := drain(client.StreamRanges(t.Context(), "orders", 5, 1))
	if unary != nil || stream != nil {
		t.Error(unary, stream)
	}
	unique(t, slices.AppendSeq(ids, allocated.All()), 7)
	client, _ = b.client(t, 2)
	if ids, err := client.AllocateStream().AllocateRange(t.Context(), "orders", 1); err != nil {
		t.Error(ids, err)
	}
}

// isUnreachable checks the errors of each kind of call over connections that break;
// it returns false if the time of one was over before its connection broke.
func (b broken) isUnreachable(t *testing.T, limit time.Duration) bool {
	client, count := b.client(t, math.MaxInt)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var group sync.WaitGroup
	var late atomic.Bool
	for name, call := range map[string]func() error{
		"unary":          func() error { _, err := client.AllocateRange(t.Context(), "orders", 1); return err },
		"pool":           func() error { _, err := client.Pool("orders").Next(ctx); return err },
		"AllocateStream": func() error { _, err := client.AllocateStream().AllocateRange(ctx, "orders", 1); return err },
		"stream":         func() error { _, err := drain(client.StreamRanges(ctx, "orders", 5, 1)); return err },
	} {
		group.Go(func() {
			var e *Error
			switch err := call(); {
			case errors.Is(err, ErrDeadlineExceeded):
				late.Store(true)
			case !errors.As(err, &e) || e.Reason != ErrServerUnreachable || !e.Retryable():
				t.Errorf("%s: got %v", name, err)
			}
		})
	}
	group.Wait()
	if count.Load() > 200 { // it does not connect without a pause
		t.Errorf("%d connections", count.Load())
	}
	return !late.Load()
}
