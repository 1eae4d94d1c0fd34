package pool

import (
	"errors"
	"fmt"
	"time"

	idallocv1 "example.com/idalloc/client/go/idallocv1"
)

// ErrInvalidReply is the error of a reply that contradicts the protos. None of
// its ids is used.
var ErrInvalidReply = errors.New("invalid reply")

// maxTTL keeps the arithmetic of deadlines far from overflow. A server's
// lease_ttl is a day at most.
const maxTTL = 366 * 24 * time.Hour

// CheckRange returns an error unless the range has minCount to maxCount ids and
// its fields agree.
func CheckRange(ids *idallocv1.IdRange, minCount, maxCount int64) error {
	first, last, step, count := ids.GetFirstId(), ids.GetLastId(), ids.GetStep(), ids.GetIdCount()
	if count < max(1, minCount) || count > maxCount {
		return fmt.Errorf("%w: id_count is %d; expected %d to %d", ErrInvalidReply, count, minCount, maxCount)
	}
	if step == 0 {
		return fmt.Errorf("%w: step is 0", ErrInvalidReply)
	}
	distance := (count - 1) * step
	overflows := distance/step != count-1 || (first+distance < first) != (distance < 0)
	if overflows || first+distance != last {
		return fmt.Errorf("%w: last_id %d is not %d steps of %d after first_id %d",
			ErrInvalidReply, last, count-1, step, first)
	}
	return nil
}

// checkReply returns the time for which a pool may keep the reply's ids.
func checkReply(reply *idallocv1.AllocateRangeResponse, count int64) (time.Duration, error) {
	if err := CheckRange(reply.GetRange(), count, count); err != nil {
		return 0, err
	}
	ttl := reply.GetTtl().AsDuration()
	if ttl < 0 || ttl > maxTTL {
		return 0, fmt.Errorf("%w: ttl is %v; expected 0 to %v", ErrInvalidReply, ttl, maxTTL)
	}
	if reply.GetPeriod() != "" {
		return 0, errors.New("the sequence restarts in each period, so its numbers repeat: " +
			"allocate ranges with RANGE_VIEW_TEXTS instead of using a pool")
	}
	return ttl, nil
}
