package idalloc

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// bearer sends a token with each call.
type bearer struct {
	token    *token
	needsTLS bool
}

func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	text, err := b.token.read()
	if err != nil {
		return nil, err
	}
	if sent, ok := ctx.Value(sentTokenKey{}).(*sentToken); ok {
		sent.Store(&text)
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity keeps the token off the network without TLS.
func (b bearer) RequireTransportSecurity() bool { return b.needsTLS }

// sentToken is the token that a call sent last; nil before.
type sentToken struct{ atomic.Pointer[string] }

type sentTokenKey struct{}

// recordToken returns a context whose calls record the token that they send.
func recordToken(ctx context.Context) (context.Context, *sentToken) {
	sent := &sentToken{}
	return context.WithValue(ctx, sentTokenKey{}, sent), sent
}

// token is a constant, or in a file that is read again at most once a second
// while servers accept it.
type token struct {
	path   string // empty for a constant
	mu     sync.Mutex
	readAt time.Time
	text   string
}

// read returns the token. If the file cannot be read, the former one stays.
func (t *token) read() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path == "" || t.text != "" && time.Since(t.readAt) < time.Second {
		return t.text, nil
	}
	content, err := os.ReadFile(t.path)
	t.readAt = time.Now()
	if text := strings.TrimSpace(string(content)); text != "" {
		t.text = text
	}
	if t.text == "" {
		if err == nil {
			err = fmt.Errorf("%s is empty", t.path)
		}
		return "", err
	}
	return t.text, nil
}

// isReplaced returns whether err rejects the token that was sent, and the file now
// has another one.
func (t *token) isReplaced(err error, sent *sentToken) bool {
	rejected := sent.Load()
	if t == nil || rejected == nil || err == nil || errorOf(err).Code != codes.Unauthenticated {
		return false
	}
	t.mu.Lock()
	t.readAt = time.Time{}
	t.mu.Unlock()
	text, failed := t.read()
	return failed == nil && text != *rejected
}

// repeatCall is an interceptor that repeats a call once whose token was replaced.
func (t *token) repeatCall(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	ctx, sent := recordToken(ctx)
	err := invoke(ctx, method, request, reply, conn, options...)
	if t.isReplaced(err, sent) {
		err = invoke(ctx, method, request, reply, conn, options...)
	}
	return err
}
