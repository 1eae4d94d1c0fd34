package idalloc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	// Without this import, Status.Details yields "proto: not found" errors
	// in place of the messages.
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// domain is the ErrorInfo.domain of idalloc's errors.
const domain = "idalloc"

// Reason is why a call failed. It is an error itself, for errors.Is:
//
//	if errors.Is(err, idalloc.ErrSequenceExhausted) { … }
type Reason string

// Error returns the reason.
func (r Reason) Error() string { return string(r) }

// The reasons of the server. docs/reference/errors.md says for each whether a
// retry helps, and what to do.
const (
	ErrInvalidRequest        Reason = "INVALID_REQUEST"
	ErrSequenceNotFound      Reason = "SEQUENCE_NOT_FOUND"
	ErrSequenceExhausted     Reason = "SEQUENCE_EXHAUSTED"
	ErrSequenceInvalid       Reason = "SEQUENCE_INVALID"
	ErrStoreUnavailable      Reason = "STORE_UNAVAILABLE"
	ErrStoreWentBackwards    Reason = "STORE_WENT_BACKWARDS"
	ErrServerDraining        Reason = "SERVER_DRAINING"
	ErrDocIDTimestampRefused Reason = "DOC_ID_TIMESTAMP_REFUSED"
	ErrInternal              Reason = "INTERNAL"
	ErrSequenceExists        Reason = "SEQUENCE_EXISTS"
	ErrSequenceChanged       Reason = "SEQUENCE_CHANGED"
	ErrRequestIDReused       Reason = "REQUEST_ID_REUSED"
	ErrRequestIDBurned       Reason = "REQUEST_ID_BURNED"
	ErrSequenceAheadOfClock  Reason = "SEQUENCE_AHEAD_OF_CLOCK"
	ErrPrefixInUse           Reason = "PREFIX_IN_USE"
	ErrUnauthenticated       Reason = "UNAUTHENTICATED"
	ErrPermissionDenied      Reason = "PERMISSION_DENIED"
	ErrQuotaExceeded         Reason = "QUOTA_EXCEEDED"
	ErrStoreRefused          Reason = "STORE_REFUSED"
	ErrTooManySequences      Reason = "TOO_MANY_SEQUENCES"
)

// The reasons of this package. An error of gRPC or of a proxy that is none of
// these has the name of its code, such as "UNIMPLEMENTED".
const (
	// ErrServerUnreachable: no server answered, or one that stops ended the call.
	// If TLS failed, Metadata["tls"] is "untrusted", "expired", "name", "plaintext" or,
	// if the server probably requires TLS or a client certificate, "closed".
	ErrServerUnreachable Reason = "SERVER_UNREACHABLE"
	// ErrDeadlineExceeded: no answer in time. It matches context.DeadlineExceeded, too.
	ErrDeadlineExceeded Reason = "DEADLINE_EXCEEDED"
	// ErrCancelled: the caller's context was cancelled. It matches context.Canceled, too.
	ErrCancelled Reason = "CANCELLED"
	// ErrClosed: the client, pool or stream is closed.
	ErrClosed Reason = "CLOSED"
	// ErrInvalidConfig: a file of TLS or a token cannot be used.
	ErrInvalidConfig Reason = "INVALID_CONFIG"
	// ErrInvalidReply: a reply contradicts the protos. None of its ids is used.
	ErrInvalidReply Reason = "INVALID_REPLY"
	// ErrExpiredOnArrival: three ranges in a row came too late for a pool.
	ErrExpiredOnArrival Reason = "EXPIRED_ON_ARRIVAL"
)

// Error is the only type of error that clients, pools and streams return.
type Error struct {
	// Reason is a constant of this package, or the name of a gRPC code.
	Reason Reason
	// Code is the gRPC status code.
	Code codes.Code
	// Message says what is wrong, for a person.
	Message string
	// Metadata has the values of the message, such as "largest_range".
	Metadata map[string]string
	// RetryDelay is how long to wait before a retry, at most an hour; 0 if the
	// server asked for no wait.
	RetryDelay time.Duration
	// Details are the messages of google.rpc in the status, such as *errdetails.BadRequest.
	Details []any

	causes []error
}

// Error returns the reason and the message, in one line.
func (e *Error) Error() string {
	text := strings.Join(strings.Fields(string(e.Reason)+": "+e.Message), " ")
	var escaped strings.Builder
	for _, r := range text { // the server may have sent any character
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.String()
}

// Is reports whether target is the error's Reason.
func (e *Error) Is(target error) bool { return target == error(e.Reason) }

// Unwrap returns the errors behind it: the gRPC status, for status.FromError,
// and the context's error if the context ended.
func (e *Error) Unwrap() []error { return e.causes }

// Retryable reports whether the same call may succeed later: the server or its
// store is unavailable, no answer came in time, or a quota is exceeded. If the
// call's context has ended, the next call needs another one.
func (e *Error) Retryable() bool {
	return e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded || e.Reason == ErrQuotaExceeded
}

// ErrorOf converts an error of a call of Stubs to an *Error. It returns nil for
// nil, and an *Error as it is.
func ErrorOf(err error) error {
	if err == nil {
		return nil // not a nil *Error
	}
	return errorOf(err)
}

// errorOf is ErrorOf with the type of the error; nil for nil.
func errorOf(err error) *Error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return known
	}
	st, isStatus := status.FromError(err)
	if !isStatus {
		st = status.FromContextError(err)
	}
	e := &Error{Code: st.Code(), Message: st.Message(), causes: []error{err}}
	for _, detail := range st.Details() {
		switch detail := detail.(type) {
		case error: // a message of a type that this program does not know
			continue
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == domain {
				e.Reason, e.Metadata = Reason(detail.GetReason()), detail.GetMetadata()
			}
		case *errdetails.RetryInfo:
			e.RetryDelay = min(max(0, detail.GetRetryDelay().AsDuration()), maxRetryDelay)
		}
		e.Details = append(e.Details, detail)
	}
	switch {
	case e.Reason != "":
	case e.Code != codes.Unavailable:
		e.Reason = Reason(rpccode.Code(e.Code).String()) // DEADLINE_EXCEEDED, not DeadlineExceeded
	default:
		e.Reason = ErrServerUnreachable
		for _, cause := range tlsCauses {
			if isFound, _ := regexp.MatchString(cause.pattern, st.Message()); isFound {
				e.Message, e.Metadata = cause.text+": "+st.Message(), map[string]string{"tls": cause.kind}
				break
			}
		}
	}
	if e.Code == codes.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		e.causes = append(e.causes, context.DeadlineExceeded)
	}
	return e
}

// tlsCauses are why connections fail for TLS, as gRPC's messages show it.
var tlsCauses = []struct{ kind, pattern, text string }{
	{"expired", `x509: certificate has expired`, "the server's certificate has expired"},
	{"untrusted", `x509: .*(unknown authority|not trusted)`, "the server's certificate is signed by an untrusted CA"},
	{"name", `x509: (certificate is (not )?valid for|cannot validate)`, "the server's certificate is not valid for the expected name"},
	{"plaintext", `does not look like a TLS handshake`, "the server does not use TLS"},
	{"closed", `(preface|handshake failed): .*(EOF|reset|remote error|too large)|write: (broken pipe|connection reset)`,
		"the server closed the connection before it answered, as one that requires TLS or a client certificate does"},
}

// brokenStream matches gRPC's messages for a stream that ended without a status.
var brokenStream = regexp.MustCompile("RST_STREAM|without sending trailers")

// errStalled is the cause of a context that ended since its stream was silent.
var errStalled = errors.New("no message of the stream arrived")

// failureOf converts the error of an attempt; nil for nil. A broken transport, to
// which gRPC or a server may give any code, is ErrServerUnreachable: a server that
// stops cancels calls of a context that has not ended, and a proxy may reset a stream
// that was silent for long.
func failureOf(ctx context.Context, err error) *Error {
	e := errorOf(err)
	switch {
	case e == nil:
	case errors.Is(context.Cause(ctx), errStalled):
		e = newError(ErrDeadlineExceeded, codes.DeadlineExceeded, "%v within %v", errStalled, maxSilence)
		e.causes = []error{context.DeadlineExceeded}
	case ctx.Err() != nil || e.Code == codes.DeadlineExceeded:
	case e.Reason == ErrCancelled || brokenStream.MatchString(e.Message):
		return newError(ErrServerUnreachable, codes.Unavailable, "the call broke: %s", e.Message)
	}
	return e
}

// endedBy adds the error of a context that ended to an error.
func endedBy(ctx context.Context, e *Error) *Error {
	cause := ctx.Err()
	if cause == nil || errors.Is(e, cause) {
		return e
	}
	changed := *e
	changed.causes = append(append([]error(nil), e.causes...), cause)
	return &changed
}

func newError(reason Reason, code codes.Code, format string, arguments ...any) *Error {
	text := fmt.Sprintf(format, arguments...)
	return &Error{Reason: reason, Code: code, Message: text, causes: []error{status.Error(code, text)}}
}

// invalid returns the error of an argument that the server would reject.
func invalid(field, format string, arguments ...any) *Error {
	e := newError(ErrInvalidRequest, codes.InvalidArgument, field+": "+format, arguments...)
	e.Metadata = map[string]string{"field": field}
	return e
}

func invalidReply(format string, arguments ...any) *Error {
	return newError(ErrInvalidReply, codes.Internal, format, arguments...)
}

func closed(what string) *Error {
	return newError(ErrClosed, codes.Canceled, "the %s is closed", what)
}
