package idalloc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

// servers are the servers of a target, and the connection of Stubs. Their state
// machine, with its words, is docs/explanation/client-calls.md.
type servers struct {
	ctx     context.Context // ends with Close
	config  *config
	places  []address    // as in the target
	latency atomic.Int64 // smoothed

	mu         sync.Mutex
	addresses  []address
	settings   *tls.Config
	all        []*server // of one address: its connection, and a spare
	turn       int
	resolvedAt time.Time
}

// address is where to connect: to HOST:PORT or a target of gRPC, or to one of the
// addresses of its name.
type address struct{ place, target string }

type server struct {
	grpc.ClientConnInterface
	ctx       context.Context // ends with the connection
	close     context.CancelFunc
	calls     sync.WaitGroup
	isSuspect bool
	answered  chan struct{} // closed when the probe under way is answered
}

// set connects to addresses if they or the settings are new. The former servers are
// closed after their calls.
func (s *servers) set(addresses []address, settings *tls.Config) error {
	if slices.Equal(addresses, s.addresses) && settings == s.settings {
		return nil
	}
	var all []*server
	for i := range max(2, len(addresses)) {
		conn, err := s.config.connect(addresses[i%len(addresses)], settings)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(s.ctx)
		context.AfterFunc(ctx, func() { conn.Close() })
		all = append(all, &server{ClientConnInterface: conn, ctx: ctx, close: cancel})
	}
	for _, former := range s.all {
		go func() {
			former.calls.Wait()
			former.close()
		}()
	}
	s.addresses, s.settings, s.all = addresses, settings, all
	return nil
}

// lookUp is another function in tests.
var lookUp = net.DefaultResolver.LookupIP

// resolve looks up the places. A name with several addresses of one family is
// several servers, IPv4 first. A look-up that fails changes nothing.
func (s *servers) resolve() {
	var all []address
	for _, named := range s.places {
		host, port, _ := net.SplitHostPort(named.place)
		ips, err := lookUp(s.ctx, "ip", host)
		if err != nil {
			return
		}
		slices.SortFunc(ips, func(a, b net.IP) int { return bytes.Compare(a, b) })
		families := map[bool][]address{}
		for _, ip := range slices.CompactFunc(ips, net.IP.Equal) {
			isIPv4 := ip.To4() != nil
			families[isIPv4] = append(families[isIPv4], address{named.place, net.JoinHostPort(ip.String(), port)})
		}
		found := families[len(families[true]) > 1]
		if len(found) < 2 {
			found = []address{named}
		}
		all = append(all, found...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(all, s.settings)
}

// find returns the next servers in turn that this round has not asked, or nil.
func (s *servers) find(asked []*server) (usable, suspect *server) {
	for i := range s.all {
		at := s.all[(s.turn+i)%len(s.all)]
		isSpare := len(s.addresses) == 1 && at != s.all[0] && !s.all[0].isSuspect
		switch {
		case isSpare || slices.Contains(asked, at):
		case at.isSuspect:
			suspect = cmp.Or(suspect, at)
		default:
			usable = cmp.Or(usable, at)
		}
	}
	return usable, suspect
}

// pick returns the next server of a call, and adds an attempt to both.
func (s *servers) pick(o *outage) (*server, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, closed("client")
	}
	settings, _ := s.config.tls.load(maxFileAge)
	s.set(s.addresses, settings)
	isDue := slices.ContainsFunc(s.all, func(each *server) bool { return each.isSuspect })
	if s.resolvedAt.IsZero() || isDue && time.Since(s.resolvedAt) >= resolveInterval {
		s.resolvedAt = time.Now()
		go s.resolve()
	}
	at := cmp.Or(s.find(o.asked))
	if at == nil {
		return nil, newError(ErrServerUnreachable, codes.Unavailable, "the target has no other server")
	}
	o.asked = append(o.asked, at)
	s.turn = slices.Index(s.all, at) + 1
	at.calls.Add(1)
	return at, nil
}

// isRead matches the methods that change nothing.
var isRead = regexp.MustCompile("/(Get|List|Parse)[A-Za-z]+$")

// stateOf returns the state of a call: that of its context, or a new one.
func (s *servers) stateOf(ctx context.Context) *outage {
	o, ok := ctx.Value(outageKey{}).(*outage)
	if !ok {
		o = &outage{maxRounds: maxRounds}
	}
	o.servers = s
	return o
}

type result struct {
	reply proto.Message
	err   *Error
}

// Invoke makes a unary call.
func (s *servers) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	o := s.stateOf(ctx)
	identified, _ := request.(interface{ GetRequestId() string })
	// With more options than StaticMethod, gRPC may write into variables of the caller.
	o.isRepeatable = o.late != nil || len(options) < 2 &&
		(isRead.MatchString(method) || identified != nil && identified.GetRequestId() != "")
	send := func(ctx context.Context, results chan<- result) *server {
		at, e := s.pick(o)
		if e != nil {
			results <- result{err: e}
			return nil
		}
		own, start := reply.(proto.Message).ProtoReflect().New().Interface(), time.Now()
		go func() {
			e := s.ended(ctx, at, at.Invoke(ctx, method, request, own, options...))
			if old := s.latency.Load(); e == nil {
				s.latency.Store(old + (int64(time.Since(start))-old)/5)
			}
			results <- result{own, e}
		}()
		return at
	}
	for {
		o.sent, _ = s.config.token.load(maxFileAge)
		got := s.attempt(ctx, o, send)
		switch {
		case got.err == nil:
			proto.Merge(reply.(proto.Message), got.reply)
			return nil
		case s.ctx.Err() != nil:
			return closed("client")
		case ctx.Err() == nil && got.err.Code != codes.Unavailable && got.err.Code != codes.Unauthenticated:
			return got.err
		default:
			if e := o.wait(ctx, got.err); e != nil {
				return e
			}
		}
	}
}

// attempt sends a call to a server, and if that hangs, once more to another one.
func (s *servers) attempt(caller context.Context, o *outage, send func(context.Context, chan<- result) *server) result {
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller)) // an answer may come after the call
	if deadline, ok := caller.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	defer context.AfterFunc(caller, cancel)()
	start, results, inFlight := time.Now(), make(chan result, 2), 1
	at := send(ctx, results)
	silent := time.After(max(minPatience, 4*time.Duration(s.latency.Load())))
	var answered <-chan struct{}
	var hung <-chan time.Time
	for {
		select {
		case <-silent:
			answered, hung = s.probe(at, false), time.After(probeLimit)
		case <-answered:
			answered, hung = nil, nil
			s.latency.Store(max(s.latency.Load(), int64(time.Since(start))))
		case <-hung:
			answered = nil
			if s.probe(at, true); o.isRepeatable {
				inFlight, o.isOver = 2, true
				send(ctx, results)
			}
		case got := <-results:
			if inFlight--; inFlight > 0 && got.err != nil && got.err.Code == codes.Unavailable {
				continue
			}
			go func() {
				defer cancel()
				for range inFlight {
					if late := <-results; late.err == nil && o.late != nil {
						o.late(late.reply)
					}
				}
			}()
			return got
		}
	}
}

// NewStream opens a stream. Its errors make its server suspect.
func (s *servers) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	o := s.stateOf(ctx)
	o.sent, _ = s.config.token.load(maxFileAge)
	at, e := s.pick(o)
	if e != nil {
		return nil, e
	}
	var once sync.Once
	ended := func(err error) { once.Do(func() { s.ended(ctx, at, err) }) }
	stream, err := at.NewStream(ctx, desc, method, append(options, grpc.OnFinish(ended))...)
	if err != nil {
		ended(err)
	}
	return stream, err
}

// ended notes the end of an attempt, and converts its error.
func (s *servers) ended(ctx context.Context, at *server, err error) *Error {
	at.calls.Done()
	e := failureOf(ctx, err)
	if e != nil && (e.Reason == ErrServerUnreachable || e.Reason == ErrServerDraining) {
		s.probe(at, true)
	}
	return e
}

// probe sends a probe if none is under way. The channel is closed at its answer.
func (s *servers) probe(at *server, isSuspect bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	at.isSuspect = at.isSuspect || isSuspect
	if at.answered != nil {
		return at.answered
	}
	at.answered = make(chan struct{})
	go func() {
		health, broken := grpc_health_v1.NewHealthClient(at), outage{}
		for at.ctx.Err() == nil {
			_, err := health.Check(at.ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
			e := failureOf(at.ctx, err)
			if e == nil || !e.Retryable() {
				break
			}
			delay, _ := broken.delay(e)
			pause(at.ctx, delay)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		close(at.answered)
		at.isSuspect, at.answered = false, nil
	}()
	return at.answered
}
