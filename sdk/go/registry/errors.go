package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotUnderAgent is the error of a process that no agent with a registry started.
	ErrNotUnderAgent = errors.New("only a plugin that guest-agent started can use its registry")
	// ErrNotFound is the error of what the registry does not have. Its text says whether type, name or instance is unknown.
	ErrNotFound = errors.New("not in the registry")
	// ErrUnreachable is the error of an agent that could not be reached for a while.
	ErrUnreachable = errors.New("the agent cannot be reached")
)

// Refused is a call that the agent refused, and would refuse again.
type Refused struct {
	// Code is the code of gRPC.
	Code codes.Code
	// Message is the agent's reason, with the fix.
	Message string
}

// Error is the agent's reason.
func (r *Refused) Error() string { return "the registry refused: " + r.Message }

func errorOf(err error) error {
	said := status.Convert(err)
	switch {
	case said.Code() == codes.NotFound:
		return fmt.Errorf("%w: %s", ErrNotFound, said.Message())
	case isTransient(err):
		return fmt.Errorf("%w: %s", ErrUnreachable, said.Message())
	default:
		return &Refused{Code: said.Code(), Message: said.Message()}
	}
}

// isTransient says whether the same call may succeed later: the agent is being restarted, has just started, or the
// connection broke.
func isTransient(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Unknown, codes.Internal, codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
		return true
	default:
		return false
	}
}

const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// pauses double, each between half and all of its step, so that plugins that lost their agent at the same time do not all
// connect at the same time.
type pauses struct{ step time.Duration }

func (p *pauses) next() time.Duration {
	p.step = min(max(2*p.step, firstPause), longestPause)
	return p.step/2 + rand.N(p.step/2)
}

func (p *pauses) pause(ctx context.Context) error {
	select {
	case <-time.After(p.next()):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
