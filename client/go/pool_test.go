package idalloc

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"example.com/idalloc/client/go/idallocv1"
)

// virtual runs a test in virtual time with a pool of the server.
func virtual(t *testing.T, server *fakeServer, test func(*testing.T, *Pool, *jumpingClock)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clock := newJumpingClock()
		p := newPool("orders", server.allocate, clock.both())
		defer p.Close()
		test(t, p, clock)
	})
}

func equal(t *testing.T, what string, got, want []int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestFastUseDoublesRanges(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		for want := range int64(5_000_000) {
			if id, err := p.Next(t.Context()); err != nil || id != want+1 {
				t.Fatalf("got %d, %v; want %d", id, err, want+1)
			}
		}
		sizes := server.requested()
		equal(t, "first sizes", sizes[:5], []int64{1, 2, 4, 8, 16})
		if largest := slices.Max(sizes); largest != maxRangeSize {
			t.Errorf("the largest request is of %d ids", largest)
		}
	})
}

func TestSlowUseKeepsSize(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		for range 20 {
			draw(t, p, 1)
			time.Sleep(time.Second)
		}
		if largest := slices.Max(server.requested()); largest > 2 {
			t.Errorf("a caller of one id a second got a range of %d", largest)
		}
	})
}

func TestSecondHalfPrefetches(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		draw(t, p, 7) // the ranges 1, 2..3, 4..7
		synctest.Wait()
		equal(t, "sizes", server.requested(), []int64{1, 2, 4, 8})
		draw(t, p, 4) // 8..11: the first half of 8..15
		synctest.Wait()
		equal(t, "sizes in the first half", server.requested(), []int64{1, 2, 4, 8})
		draw(t, p, 1)
		synctest.Wait()
		equal(t, "sizes in the second half", server.requested(), []int64{1, 2, 4, 8, 16})

		server.latency = time.Hour
		before := time.Now()
		draw(t, p, 3+16)
		if time.Since(before) > 0 {
			t.Error("the prefetched ids were not at hand")
		}
	})
}

func TestExpiredIdsAreDropped(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, clock *jumpingClock) {
		draw(t, p, 9) // of 8..15
		synctest.Wait()
		clock.jump(server.ttl)
		equal(t, "ids after the jump", draw(t, p, 1), []int64{16})
		synctest.Wait()
		if calls := len(server.requested()); calls != 5 {
			t.Errorf("%d requests: prefetches although the last range expired", calls)
		}
	})
}

func TestExpiredPrefetchIsDropped(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, clock *jumpingClock) {
		draw(t, p, 3) // 4..7 is prefetched
		synctest.Wait()
		clock.jump(server.ttl)
		equal(t, "ids after the jump", draw(t, p, 1), []int64{8})
	})
}

func TestIdsLiveUntilTheirDeadline(t *testing.T) {
	server := newFakeServer(nil)
	server.latency = 5 * time.Second // the ttl counts from before the request
	virtual(t, server, func(t *testing.T, p *Pool, clock *jumpingClock) {
		draw(t, p, 3)
		time.Sleep(server.latency) // 4..7 arrives
		clock.jump(server.ttl - server.latency - 1)
		equal(t, "a nanosecond before the end", draw(t, p, 2), []int64{4, 5})
		clock.jump(1)
		if id := draw(t, p, 1)[0]; id == 6 {
			t.Error("id 6 was given out at its deadline")
		}
	})
}

func TestLateRangesAreAnError(t *testing.T) {
	server := newFakeServer(nil)
	server.ttl, server.latency = time.Second, time.Second
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		is(t, errOf(p.Next(t.Context())), ErrExpiredOnArrival)
		equal(t, "sizes", server.requested(), []int64{1, 1, 1})
		server.latency = 0
		equal(t, "ids afterwards", draw(t, p, 1), []int64{4})
	})
}

func TestJumpDuringRequest(t *testing.T) {
	server := newFakeServer(nil)
	server.latency = time.Second
	virtual(t, server, func(t *testing.T, p *Pool, clock *jumpingClock) {
		time.AfterFunc(500*time.Millisecond, func() { clock.jump(time.Hour) })
		equal(t, "ids", draw(t, p, 1), []int64{2})
	})
}

func TestErrorsGoToTheCaller(t *testing.T) {
	server := newFakeServer(failing(failure(codes.PermissionDenied, "PERMISSION_DENIED", nil), 1))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		is(t, errOf(p.Next(t.Context())), ErrPermissionDenied)
		equal(t, "ids afterwards", draw(t, p, 3), []int64{1, 2, 3})
	})
}

func TestAnOutageIsOutlastedForTenSeconds(t *testing.T) {
	server := newFakeServer(failingFrom(storeUnavailable, 4))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		draw(t, p, 7)
		before := time.Now()
		_, err := p.Next(t.Context())
		if waited := time.Since(before); !errors.Is(err, ErrStoreUnavailable) || waited < 7*time.Second || waited > outageLimit {
			t.Errorf("got %v after %v", err, waited)
		}
	})
}

func TestAnOutageIsOutlastedWithinTheContext(t *testing.T) {
	server := newFakeServer(failingFrom(storeUnavailable, 4))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		draw(t, p, 7)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		before := time.Now()
		_, err := p.Next(ctx)
		if waited := time.Since(before); !errors.Is(err, context.Canceled) || waited != 5*time.Second {
			t.Errorf("got %v after %v", err, waited)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		is(t, errOf(p.Next(ctx)), ErrStoreUnavailable)
		server.failing = nil
		equal(t, "ids afterwards", draw(t, p, 1), []int64{8})
	})
}

func TestFailedPrefetchIsAskedAgain(t *testing.T) {
	server := newFakeServer(failing(failure(codes.Unavailable, "SERVER_DRAINING", nil), 3, 5))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		ids := draw(t, p, 100)
		if ids[0] != 1 || ids[99] != 100 {
			t.Errorf("got %v", ids)
		}
	})
}

func TestQuotaIsWaitedFor(t *testing.T) {
	server := newFakeServer(failing(quotaExceeded(3*time.Second), 1, 2))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		before := time.Now()
		draw(t, p, 1)
		if waited := time.Since(before); waited < 6*time.Second || waited > 7200*time.Millisecond {
			t.Errorf("waited %v for two quotas of 3 s", waited)
		}
	})
}

func TestQuotaBeyondTheDeadlineIsAnError(t *testing.T) {
	server := newFakeServer(failingFrom(quotaExceeded(time.Hour), 1))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		before := time.Now()
		_, err := p.Next(ctx)
		if !errors.Is(err, Reason("QUOTA_EXCEEDED")) || time.Since(before) > 0 {
			t.Errorf("got %v after %v", err, time.Since(before))
		}
	})
}

func TestSizeFollowsTheServersLimit(t *testing.T) {
	server := newFakeServer(nil)
	server.failing = func(_ context.Context, call int) error {
		if server.sizes[call-1] > 10 {
			return failure(codes.InvalidArgument, "INVALID_REQUEST", map[string]string{"field": "id_count"})
		}
		return nil
	}
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		draw(t, p, 100)
		equal(t, "sizes", server.requested()[:8], []int64{1, 2, 4, 8, 16, 8, 8, 8})
	})
}

func TestLastIdsOfASequence(t *testing.T) {
	server := newFakeServer(nil)
	server.next = math.MaxInt64 - 1 - 99
	left := int64(100)
	server.failing = func(_ context.Context, call int) error {
		count := server.sizes[call-1]
		if count > left {
			metadata := map[string]string{"largest_range": strconv.FormatInt(left, 10)}
			return failure(codes.OutOfRange, "SEQUENCE_EXHAUSTED", metadata)
		}
		left -= count
		return nil
	}
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		if ids := draw(t, p, 100); ids[99] != math.MaxInt64-1 {
			t.Errorf("the last id is %d", ids[99])
		}
		is(t, errOf(p.Next(t.Context())), ErrSequenceExhausted)
	})
}

func TestCancelledCallerLeavesTheRange(t *testing.T) {
	server := newFakeServer(nil)
	server.latency = time.Second
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		is(t, errOf(p.Next(ctx)), context.DeadlineExceeded)
		equal(t, "ids of the next caller", draw(t, p, 1), []int64{1})
	})
}

func TestDownwardsAndBeyondDoubles(t *testing.T) {
	for _, first := range []int64{1<<53 + 1, -(1 << 62) + 3*999, 4} {
		server := newFakeServer(nil)
		server.next, server.step = first, -3
		virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
			for i, id := range draw(t, p, 1000) {
				if id != first-3*int64(i) {
					t.Fatalf("id %d is %d", i, id)
				}
			}
		})
	}
}

func TestInvalidRepliesAreRejected(t *testing.T) {
	for name, change := range map[string]func(*idallocv1.AllocateRangeResponse){
		"no range":   func(r *idallocv1.AllocateRangeResponse) { r.Range = nil },
		"step 0":     func(r *idallocv1.AllocateRangeResponse) { r.Range.Step = 0 },
		"other last": func(r *idallocv1.AllocateRangeResponse) { r.Range.LastId++ },
		"too many":   func(r *idallocv1.AllocateRangeResponse) { r.Range.IdCount, r.Range.LastId = 2, r.Range.FirstId+1 },
		"negative":   func(r *idallocv1.AllocateRangeResponse) { r.Ttl.Seconds = -1 },
		"endless":    func(r *idallocv1.AllocateRangeResponse) { r.Ttl.Seconds = math.MaxInt64 / 1_000_000_000 },
		"period":     func(r *idallocv1.AllocateRangeResponse) { r.Period = "2026" },
	} {
		server := newFakeServer(nil)
		server.changed = change
		virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
			if id, err := p.Next(t.Context()); err == nil {
				t.Errorf("%s: got id %d", name, id)
			}
		})
	}
}

func TestAPoolRefusesAnIDOfARecentRange(t *testing.T) {
	for _, step := range []int64{1, 3, -1, -3} {
		p := newPool("orders", nil, bootClock())
		add := func(first, count int64) error {
			ids := Range{First: first * step, Last: (first + count - 1) * step, Step: step, Count: count, TTL: time.Hour}
			return p.add(ids, p.clock.exact())
		}
		for _, ids := range [][2]int64{{1, 10}, {101, 10}, {11, 10}, {31, 1}, {21, 10}, {32, 1}, {111, 5}} {
			if err := add(ids[0], ids[1]); err != nil {
				t.Error(ids, err)
			}
		}
		for _, ids := range [][2]int64{{1, 10}, {105, 1}, {10, 1}, {29, 2}, {90, 12}, {30, 5}} {
			is(t, add(ids[0], ids[1]), ErrInvalidReply) // and the pool does not keep it
		}
		for first := range int64(8) {
			if err := add(200+first, 1); err != nil {
				t.Error(err)
			}
		}
		if err := add(1, 10); err != nil { // the pool remembers eight
			t.Error(err)
		}
	}
}

func TestACallerGetsTheErrorOfARefusedRange(t *testing.T) {
	server := newFakeServer(nil)
	server.changed = func(reply *idallocv1.AllocateRangeResponse) { server.next = reply.GetRange().GetFirstId() }
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		equal(t, "ids", draw(t, p, 1), []int64{1})
		is(t, errOf(p.Next(t.Context())), ErrInvalidReply)
	})
}

func TestCloseEndsWaitingCallers(t *testing.T) {
	server := newFakeServer(nil)
	server.latency = time.Hour
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				is(t, errOf(p.Next(t.Context())), ErrClosed)
			})
		}
		synctest.Wait()
		p.Close()
		callers.Wait()
	})
}

func TestCloseDropsIds(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		draw(t, p, 5)
		p.Close()
		is(t, errOf(p.Next(t.Context())), ErrClosed)
	})
}

// In real time, with the race detector: every id once, whatever else happens.
func TestManyCallersGetEachIdOnce(t *testing.T) {
	server := newFakeServer(nil)
	server.ttl = time.Second
	server.failing = func(_ context.Context, call int) error {
		if call%7 == 0 {
			return storeUnavailable
		}
		return nil
	}
	clock := newJumpingClock()
	p := newPool("orders", server.allocate, clock.both())
	defer p.Close()
	const callers, each = 64, 3000
	got := make([][]int64, callers)
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for len(got[caller]) < each {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+caller%3)*time.Millisecond)
				if id, err := p.Next(ctx); err == nil {
					got[caller] = append(got[caller], id)
					if caller == 0 && len(got[caller])%500 == 0 {
						clock.jump(server.ttl)
					}
				}
				cancel()
			}
		})
	}
	group.Wait()
	unique(t, slices.Concat(got...), callers*each)
}

func TestFurtherOfTwoClocks(t *testing.T) {
	const hour = time.Hour
	var monotonic, wall time.Duration
	clock := furtherOf(func() time.Duration { return monotonic }, func() time.Duration { return wall })
	for _, step := range []struct{ monotonic, wall, want time.Duration }{
		{5, 5, 5},       // both
		{0, 100, 105},   // a suspend
		{10, -500, 115}, // the wall clock is set back
		{10, 10, 125},   // and advances as before
		{0, 0, 125},
		{hour, -hour, hour + 125}, // a clock is set back by more
		{0, 100, hour + 225},      // before a suspend
	} {
		monotonic, wall = monotonic+step.monotonic, wall+step.wall
		if got := clock.exact(); got != step.want {
			t.Errorf("after %v and %v: got %v, want %v", step.monotonic, step.wall, got, step.want)
		}
	}
}

// Coarse clocks tick at other moments than finer ones.
func TestACoarseClockIsNotCountedTwice(t *testing.T) {
	const tick = 15 * time.Millisecond
	for name, coarse := range map[string]struct{ monotonic, wall time.Duration }{
		"monotonic": {tick, 1}, "wall": {1, tick}, "both": {tick, tick},
	} {
		var now time.Duration
		clock := furtherOf(
			func() time.Duration { return now.Truncate(coarse.monotonic) },
			func() time.Duration { return (now + 7*time.Millisecond).Truncate(coarse.wall) })
		for range 10_000 {
			now += time.Millisecond
			clock.exact()
		}
		if got := clock.exact(); got < now-tick || got > now+2*tick {
			t.Errorf("%s: %v passed in %v", name, got, now)
		}
	}
}

// The pool on the clock for systems without CLOCK_BOOTTIME.
func TestEitherClockExpiresIds(t *testing.T) {
	for name, move := range map[string]func(monotonic, wall *time.Duration, by time.Duration){
		"suspend":                 func(_, wall *time.Duration, by time.Duration) { *wall += by },
		"wall clock is set back":  func(monotonic, wall *time.Duration, by time.Duration) { *monotonic += by; *wall -= time.Hour },
		"wall clock stands still": func(monotonic, _ *time.Duration, by time.Duration) { *monotonic += by },
	} {
		server := newFakeServer(nil)
		virtual(t, server, func(t *testing.T, _ *Pool, _ *jumpingClock) {
			var monotonic, wall time.Duration
			clock := furtherOf(func() time.Duration { return monotonic }, func() time.Duration { return wall })
			p := newPool("orders", server.allocate, clock)
			defer p.Close()
			draw(t, p, 9) // of 8..15
			synctest.Wait()
			move(&monotonic, &wall, server.ttl-1)
			equal(t, name+": ids before the end", draw(t, p, 1), []int64{10})
			move(&monotonic, &wall, 1)
			equal(t, name+": ids after the end", draw(t, p, 1), []int64{16})
		})
	}
}

func TestBootClockAdvances(t *testing.T) {
	for name, clock := range map[string]clock{"boot": bootClock(), "portable": portableClock()} {
		before := clock.fast()
		time.Sleep(20 * time.Millisecond)
		if passed := clock.fast() - before; passed < 20*time.Millisecond {
			t.Errorf("%s: %v passed in 20 ms", name, passed)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	p := newPool("orders", newFakeServer(nil).allocate, bootClock())
	defer p.Close()
	ctx := b.Context()
	for b.Loop() {
		if _, err := p.Next(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNextIn64Goroutines(b *testing.B) {
	p := newPool("orders", newFakeServer(nil).allocate, bootClock())
	defer p.Close()
	ctx := b.Context()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(each *testing.PB) {
		for each.Next() {
			if _, err := p.Next(ctx); err != nil {
				b.Error(err)
			}
		}
	})
}

// awayFor rejects all requests from the first call of begin on, for some time.
func awayFor(limit time.Duration, err error) (failing func(context.Context, int) error, begin func(), rejected func() int) {
	var until, count atomic.Int64
	failing = func(context.Context, int) error {
		if time.Now().UnixNano() < until.Load() {
			count.Add(1)
			return err
		}
		return nil
	}
	begin = func() { until.Store(time.Now().Add(limit).UnixNano()) }
	return failing, begin, func() int { return int(count.Load()) }
}

func TestWaitingCallersShareTheirRequests(t *testing.T) {
	for name, away := range map[string]error{
		"quota":  quotaExceeded(3 * time.Second),
		"outage": storeUnavailable,
	} {
		server := newFakeServer(nil)
		virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
			failing, begin, rejected := awayFor(6*time.Second, away)
			server.failing = failing
			draw(t, p, 1000)
			begin()
			before := time.Now()
			var callers sync.WaitGroup
			for range 1000 {
				callers.Go(func() { draw(t, p, 10) })
			}
			callers.Wait()
			if waited := time.Since(before); rejected() > 10 || waited > 9*time.Second {
				t.Errorf("%s: %d rejected requests, %v", name, rejected(), waited)
			}
		})
	}
}

func TestARequestWaitsAlsoForLaterCallers(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		failing, begin, rejected := awayFor(time.Minute, quotaExceeded(10*time.Second))
		server.failing = failing
		draw(t, p, 7)
		synctest.Wait()
		draw(t, p, 8)
		synctest.Wait()
		begin()
		for range 600 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := p.Next(ctx); !errors.Is(err, ErrQuotaExceeded) && err != nil {
				t.Error(err)
			}
			time.Sleep(100 * time.Millisecond)
			cancel()
		}
		if rejected() > 7 {
			t.Errorf("%d rejected requests", rejected())
		}
	})
}

func TestAFailedPrefetchIsRepeatedWithinItsRange(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		failing, begin, rejected := awayFor(30*time.Second, storeUnavailable)
		server.failing = failing
		draw(t, p, 255+64) // of 256..511
		synctest.Wait()
		server.latency = time.Millisecond
		begin()
		for range 512 {
			before := time.Now()
			draw(t, p, 1)
			if waited := time.Since(before); waited > 0 {
				t.Fatalf("waited %v after %d rejected requests", waited, rejected())
			}
			time.Sleep(200 * time.Millisecond)
		}
		if rejected() == 0 || rejected() > 25 {
			t.Errorf("%d rejected requests", rejected())
		}
	})
}

func TestAPrefetchThatCannotSucceedIsNotRepeated(t *testing.T) {
	server := newFakeServer(failingFrom(failure(codes.PermissionDenied, "PERMISSION_DENIED", nil), 10))
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		for range 511 {
			draw(t, p, 1)
			synctest.Wait()
		}
		if calls := len(server.requested()); calls != 10 {
			t.Errorf("%d requests", calls)
		}
	})
}

func TestAnIdAtHandIsReturnedAfterTheContext(t *testing.T) {
	server := newFakeServer(nil)
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		draw(t, p, 7)
		synctest.Wait() // 8..15 is prefetched
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if id, err := p.Next(ctx); id != 8 || err != nil {
			t.Errorf("got %d, %v", id, err)
		}
	})
}

func TestAPrefetchBeyondTheLastIdIsRepeatedOnce(t *testing.T) {
	server := newFakeServer(nil)
	server.failing = func(_ context.Context, call int) error {
		if left := 100 - (server.next - 1); server.sizes[call-1] > left {
			return failure(codes.OutOfRange, "SEQUENCE_EXHAUSTED", map[string]string{"largest_range": strconv.FormatInt(left, 10)})
		}
		return nil
	}
	virtual(t, server, func(t *testing.T, p *Pool, _ *jumpingClock) {
		for range 100 {
			draw(t, p, 1)
			synctest.Wait()
		}
		equal(t, "sizes", server.requested(), []int64{1, 2, 4, 8, 16, 32, 64, 37, 74})
	})
}
