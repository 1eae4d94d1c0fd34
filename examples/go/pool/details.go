package pool

import (
	"time"

	// Without this import, Status.Details yields "proto: not found" errors
	// in place of the messages.
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Domain is the ErrorInfo.domain of idalloc's errors.
const Domain = "idalloc"

// Details is what the status of a failed call contains.
type Details struct {
	Code       codes.Code
	Message    string
	Reason     string                                  // of ErrorInfo, such as "SEQUENCE_EXHAUSTED"; empty without one
	Metadata   map[string]string                       // of ErrorInfo
	Violations []*errdetails.BadRequest_FieldViolation // of BadRequest
	Quotas     []*errdetails.QuotaFailure_Violation    // of QuotaFailure
	RetryDelay *time.Duration                          // of RetryInfo; nil without one
}

// DetailsOf reads the details of an error of a gRPC call. An error that is no
// gRPC status has the code Unknown.
func DetailsOf(err error) Details {
	st, _ := status.FromError(err)
	found := Details{Code: st.Code(), Message: st.Message()}
	for _, detail := range st.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == Domain {
				found.Reason, found.Metadata = detail.GetReason(), detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			found.Violations = detail.GetFieldViolations()
		case *errdetails.QuotaFailure:
			found.Quotas = detail.GetViolations()
		case *errdetails.RetryInfo:
			delay := max(0, detail.GetRetryDelay().AsDuration())
			found.RetryDelay = &delay
		}
	}
	return found
}
