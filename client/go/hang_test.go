package idalloc

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHungServerCostsLessThanTwoSeconds(t *testing.T) {
	var shapes sync.WaitGroup
	var late atomic.Int64
	for _, ips := range [][]string{{"127.0.0.2", "127.0.0.3"}, {"127.0.0.2", "127.0.0.3", "127.0.0.4"}} {
		for _, shape := range []string{"list", "name", "one address"} {
			shapes.Go(func() { t.Run(shape, func(t *testing.T) { survive(t, shape, ips, &late) }) })
		}
	}
	shapes.Wait()
	if late.Load() == 0 {
		t.Error("no late answer is counted")
	}
}

// survive takes ids while one of the servers hangs for 3 s.
func survive(t *testing.T, shape string, ips []string, late *atomic.Int64) {
	service, port := newService(nil), "0"
	service.ttl = 200 * time.Millisecond
	var list []string
	for _, ip := range ips {
		_, address := service.replica(t, ip+":"+port)
		_, port, _ = net.SplitHostPort(address)
		list = append(list, address)
	}
	target := strings.Join(list, ",")
	switch shape {
	case "name":
		name := strings.Join(ips, "-") + ".test"
		names.Store(name, ips)
		target = name + ":" + port
	case "one address":
		target = front(t, func(number int, _ *net.TCPConn) string { return list[(number-1)%len(list)] })
	}
	client := open(t, target, WithTimeout(time.Minute), WithObserver(func(event Event) {
		if event.Method == "Pool" {
			late.Add(min(event.IDs, event.Dropped))
		}
	}))
	pool := client.Pool("orders")
	var isDone atomic.Bool
	var got [2][]int64
	var group sync.WaitGroup
	for i, next := range []func() (int64, error){
		func() (int64, error) { return pool.Next(t.Context()) },
		func() (int64, error) {
			ids, err := client.AllocateRange(t.Context(), "orders", 1, WithRequestID(NewRequestID()))
			return ids.First, err
		},
	} {
		group.Go(func() {
			for ; !isDone.Load(); time.Sleep(5 * time.Millisecond) {
				before := time.Now()
				id, err := next()
				if waited := time.Since(before); err != nil || waited > 2*time.Second {
					t.Errorf("%v after %v", err, waited)
				}
				got[i] = append(got[i], id)
			}
		})
	}
	await(t, service, 20)
	service.hosts[0].Lock()
	time.Sleep(3 * time.Second)
	service.hosts[0].Unlock()
	await(t, service, 20)
	isDone.Store(true)
	group.Wait()
	unique(t, slices.Concat(got[:]...), 40)
}

func TestASlowStoreGetsEachCallOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newService(func(context.Context, int) error { time.Sleep(1500 * time.Millisecond); return nil })
		client := service.start(t)
		for range 20 {
			client.AllocateRange(t.Context(), "orders", 1, WithRequestID(NewRequestID()))
		}
		if calls := service.count(); calls != 20 {
			t.Errorf("%d calls, expected 20", calls)
		}
	})
}

func TestEachCallerOfAPoolWaitsForItsOwnTime(t *testing.T) {
	server := newFakeServer(failingFrom(storeUnavailable, 1))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				limit := time.Duration(i+1) * 2 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				before := time.Now()
				_, err := p.Next(ctx)
				if is(t, err, ErrStoreUnavailable); time.Since(before) > limit || time.Since(before) < limit-3*time.Second {
					t.Errorf("waited %v of %v", time.Since(before), limit)
				}
			})
		}
		callers.Wait()
	})
}
