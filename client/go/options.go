package idalloc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Event is a finished call, or ids that a pool dropped. See WithObserver.
type Event struct {
	// Method is the RPC, such as "AllocateRange"; "Pool" for dropped ids.
	Method string
	// Sequence is the sequence; empty for document ids and batches.
	Sequence string
	// IDs is how many ids arrived.
	IDs int64
	// Dropped is how many ids a pool dropped: they expired, it was closed, or they
	// came late, after the answer of another server. Late ones are also in IDs.
	Dropped int64
	// Duration is how long the call took, with its retries.
	Duration time.Duration
	// Err is nil or an *Error.
	Err error
}

// Option is an option of New and NewFromConn.
type Option func(*config)

// There are no options of pools, document ids, batches and AllocateStream. The
// types let a later version add some without a change of the methods.
type (
	// PoolOption is an option of Client.Pool.
	PoolOption interface{ isPoolOption() }
	// DocIDOption is an option of DocIDs and StreamDocIDs.
	DocIDOption interface{ isDocIDOption() }
	// BatchOption is an option of BatchAllocateRanges.
	BatchOption interface{ isBatchOption() }
	// StreamOption is an option of Client.AllocateStream.
	StreamOption interface{ isStreamOption() }
)

type config struct {
	tls           *loaded[*tls.Config] // nil without TLS
	token         *loaded[string]      // nil without one
	tokenAnywhere bool
	timeout       time.Duration
	observe       func(Event)
	dial          []grpc.DialOption
}

// TLS is how to encrypt. The zero value trusts the system's certificates. The files
// are read again after a second. If they have changed, new calls use a new
// connection, and open calls end on the former one.
type TLS struct {
	// CAFile has the certificates to trust, in PEM. Empty means the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key, in PEM, for
	// servers that require one.
	CertFile, KeyFile string
	// ServerName is the name in the server's certificate, if it is not the
	// target's.
	ServerName string
}

// WithTLS encrypts connections. Without it they are in plain text.
func WithTLS(files TLS) Option {
	paths := []string{files.CAFile, files.CertFile, files.KeyFile}
	return func(c *config) { c.tls = &loaded[*tls.Config]{paths: paths, parse: files.parse} }
}

// WithToken sends a token with each call. Without TLS it is sent to this
// machine only; see WithPlaintextToken.
func WithToken(text string) Option {
	parse := func([]string) (string, error) { return parseToken("the value", text) }
	return func(c *config) { c.token = &loaded[string]{parse: parse} }
}

// WithTokenFile sends the token in a file. The file is read again after a second,
// and when a server rejects its token: a call is then repeated once with the new
// one.
func WithTokenFile(path string) Option {
	parse := func(contents []string) (string, error) { return parseToken(path, contents[0]) }
	return func(c *config) { c.token = &loaded[string]{paths: []string{path}, parse: parse} }
}

// WithPlaintextToken sends the token to other machines without TLS, too:
// something else must encrypt.
func WithPlaintextToken() Option { return func(c *config) { c.tokenAnywhere = true } }

// WithTimeout limits each unary call and each request of AllocateStream, with
// their retries. The default is 5 s; 0 means no limit but that of the context. A
// pool's requests also last 10 s at most. StreamRanges and StreamDocIDs have no
// limit of time, but end an attempt that receives nothing for 60 s.
func WithTimeout(limit time.Duration) Option { return func(c *config) { c.timeout = limit } }

// WithObserver calls a function after each call, for metrics. It must return
// quickly and not use the client; goroutines call it concurrently.
func WithObserver(observe func(Event)) Option { return func(c *config) { c.observe = observe } }

// WithDialOptions adds options of gRPC, such as interceptors or transport
// credentials. They override those of this package. An interceptor sees each
// attempt of a call, and health checks. Without a dialer of yours there is no proxy.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(c *config) { c.dial = append(c.dial, options...) }
}

func newConfig(options []Option) *config {
	c := &config{timeout: 5 * time.Second, observe: func(Event) {}}
	for _, option := range options {
		option(c)
	}
	return c
}

// open prepares the connections to a target. Its errors are an *Error.
func (s *servers) open(target string) error {
	c := s.config
	settings, err := c.tls.load(maxFileAge)
	if err != nil {
		return newError(ErrInvalidConfig, codes.FailedPrecondition, "tls: %v", err)
	}
	target = strings.TrimPrefix(strings.TrimPrefix(target, "ipv4:"), "ipv6:") // gRPC for Go does not know these
	if place, ok := strings.CutPrefix(target, "dns:///"); ok && strings.Contains(place, ":") {
		target = place
	}
	s.places, err = placesOf(target)
	if err != nil {
		return invalid("target", "%v", err)
	}
	if _, err := c.token.load(maxFileAge); err != nil {
		return newError(ErrInvalidConfig, codes.FailedPrecondition, "token: %v", err)
	}
	isPlain := c.tls == nil && !c.tokenAnywhere && len(c.dial) == 0
	if c.token != nil && isPlain && !isLocal(s.places...) {
		return invalid("token", "is sent to %s only over TLS: add WithTLS", target)
	}
	// With a constant turn each program would begin with the same server.
	s.turn = rand.IntN(1 << 16)
	if err := s.set(s.places, settings); err != nil {
		return invalid("target", "%v", err)
	}
	return nil
}

// connect returns gRPC's connection to an address, which connects at the first call.
func (c *config) connect(to address, settings *tls.Config) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if settings != nil {
		transport = credentials.NewTLS(settings)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		// The default lets a channel wait up to two minutes before it connects
		// again, although the server has long been back.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	if c.token != nil {
		needsTLS := c.tls != nil || !c.tokenAnywhere && !isLocal(to)
		options = append(options, grpc.WithPerRPCCredentials(bearer{c.token, needsTLS}))
	}
	target := to.place
	if !ofGRPC.MatchString(target) {
		target = "passthrough:///" + target // which the certificate names
		var last atomic.Int64
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			now := time.Now().UnixNano()
			if now-last.Swap(now) < int64(minBackoff/2) { // gRPC itself connects again without a pause
				return nil, errors.New("the server ended a connection at once")
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", to.target)
		}))
	}
	return grpc.NewClient(target, append(options, c.dial...)...)
}

// ofGRPC matches a target of gRPC that is no address.
var ofGRPC = regexp.MustCompile(`^(unix|unix-abstract|dns|passthrough|vsock):|^[a-z0-9+.-]+://`)

// placesOf returns the addresses of a target, or itself if it is one of gRPC's.
func placesOf(target string) ([]address, error) {
	scheme, _, _ := strings.Cut(target, "://")
	if ofGRPC.MatchString(target) && !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, scheme) {
		return []address{{target, target}}, nil
	}
	var places []address
	for place := range strings.SplitSeq(target, ",") {
		place = strings.TrimSpace(place)
		if _, _, err := net.SplitHostPort(place); err != nil {
			return nil, fmt.Errorf("%q: expected HOST:PORT, or several with commas: %w", target, err)
		}
		places = append(places, address{place, place})
	}
	return places, nil
}

func isLocal(places ...address) bool {
	return !slices.ContainsFunc(places, func(to address) bool {
		host, _, _ := net.SplitHostPort(to.place[strings.LastIndex(to.place, "/")+1:])
		return host != "localhost" && !net.ParseIP(host).IsLoopback() && !strings.HasPrefix(to.place, "unix:")
	})
}
