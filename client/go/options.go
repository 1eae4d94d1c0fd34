package idalloc

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"example.com/idalloc/client/go/idallocv1"
)

// Event is a finished call, or ids that a pool dropped. See WithObserver.
type Event struct {
	// Method is the RPC, such as "AllocateRange"; "Pool" for dropped ids.
	Method string
	// Sequence is the sequence; empty for document ids and batches.
	Sequence string
	// IDs is how many ids arrived.
	IDs int64
	// Dropped is how many ids a pool dropped, because they expired or it was closed.
	Dropped int64
	// Duration is how long the call took, with gRPC's retries.
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
	tls           *TLS
	token         *token
	tokenAnywhere bool
	timeout       time.Duration
	observe       func(Event)
	dial          []grpc.DialOption
}

// TLS is how to encrypt. The zero value trusts the system's certificates.
type TLS struct {
	// CAFile has the certificates to trust, in PEM. Empty means the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key, in PEM, for
	// servers that require one. They are read again for each connection.
	CertFile, KeyFile string
	// ServerName is the name in the server's certificate, if it is not the
	// target's.
	ServerName string
}

// WithTLS encrypts connections. Without it they are in plain text.
func WithTLS(files TLS) Option { return func(c *config) { c.tls = &files } }

// WithToken sends a token with each call. Without TLS it is sent to this
// machine only; see WithPlaintextToken.
func WithToken(text string) Option {
	return func(c *config) { c.token = &token{text: strings.TrimSpace(text)} }
}

// WithTokenFile sends the token in a file. The file is read again after a second,
// and when a server rejects its token: a call is then repeated once with the new
// one.
func WithTokenFile(path string) Option {
	return func(c *config) { c.token = &token{path: path} }
}

// WithPlaintextToken sends the token to other machines without TLS, too:
// something else must encrypt.
func WithPlaintextToken() Option { return func(c *config) { c.tokenAnywhere = true } }

// WithTimeout limits each unary call and each request of AllocateStream, with
// their retries. The default is 5 s; 0 means no limit but that of the context. A
// pool's requests also last 60 s at most. StreamRanges and StreamDocIDs have no
// limit of time, but end an attempt that receives nothing for 60 s.
func WithTimeout(limit time.Duration) Option { return func(c *config) { c.timeout = limit } }

// WithObserver calls a function after each call, for metrics. It must return
// quickly and not use the client; goroutines call it concurrently.
func WithObserver(observe func(Event)) Option { return func(c *config) { c.observe = observe } }

// WithDialOptions adds options of gRPC, such as interceptors or transport
// credentials. They override those of this package.
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

// balanced is the service's retry policy, and the use of all addresses of a target.
var balanced = strings.Replace(idallocv1.ServiceConfig, "{", `{"loadBalancingConfig": [{"round_robin": {}}],`, 1)

// dialOptions returns gRPC's options for a target, and the target as gRPC
// writes it. Its errors are an *Error.
func (c *config) dialOptions(target string) (string, []grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if c.tls != nil {
		settings, err := c.tls.config()
		if err != nil {
			return "", nil, invalid("tls", "%v", err)
		}
		transport = credentials.NewTLS(settings)
	}
	target = strings.TrimPrefix(strings.TrimPrefix(target, "ipv4:"), "ipv6:") // gRPC for Go does not know these
	addresses, err := addressesOf(target)
	if err != nil {
		return "", nil, invalid("target", "%v", err)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// Without it, only calls that never left the client are retried.
		grpc.WithDefaultServiceConfig(balanced),
		// The default lets a channel wait up to two minutes before it connects
		// again, although the server has long been back.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	if c.token != nil {
		if token, err := c.token.read(); err != nil {
			return "", nil, invalid("token", "%v", err)
		} else if token == "" {
			return "", nil, invalid("token", "is empty")
		}
		if c.tls == nil && !c.tokenAnywhere && len(c.dial) == 0 && !isLocal(target) {
			return "", nil, invalid("token", "is sent to %s only over TLS: add WithTLS", target)
		}
		plain := c.tls == nil && (c.tokenAnywhere || isLocal(target))
		options = append(options, grpc.WithPerRPCCredentials(bearer{token: c.token, needsTLS: !plain}),
			grpc.WithChainUnaryInterceptor(c.token.repeatCall))
	}
	if len(addresses) > 1 {
		list := manual.NewBuilderWithScheme("idalloc")
		list.InitialState(resolver.State{Addresses: addresses})
		target, options = "idalloc:///servers", append(options, grpc.WithResolvers(list))
	}
	return target, append(options, c.dial...), nil
}

// ofGRPC matches a target of gRPC that is no address.
var ofGRPC = regexp.MustCompile(`^(unix|unix-abstract|dns|passthrough|vsock):|^[a-z0-9+.-]+://`)

// addressesOf returns the addresses of a target, or none if it is one of gRPC's.
func addressesOf(target string) ([]resolver.Address, error) {
	scheme, _, _ := strings.Cut(target, "://")
	if ofGRPC.MatchString(target) && !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, scheme) {
		return nil, nil
	}
	return split(target)
}

// split returns the addresses of a list. The name of each is looked up at each
// connection, so it may get another address.
func split(list string) ([]resolver.Address, error) {
	var addresses []resolver.Address
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		host, _, err := net.SplitHostPort(text)
		if err != nil {
			return nil, fmt.Errorf("%q: expected HOST:PORT, or several with commas: %w", list, err)
		}
		addresses = append(addresses, resolver.Address{Addr: text, ServerName: host})
	}
	return addresses, nil
}

func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") {
		return true
	}
	addresses, err := split(target[strings.LastIndex(target, "/")+1:])
	for _, address := range addresses {
		ip := net.ParseIP(address.ServerName)
		if address.ServerName != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return err == nil
}

func (t *TLS) config() (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, err
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", t.CAFile)
		}
	}
	if t.CertFile == "" && t.KeyFile == "" {
		return settings, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		return &pair, err
	}
	settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	_, err := read() // a wrong file is an error of New
	return settings, err
}
