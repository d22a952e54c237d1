package plugin

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/plugincomm"
)

const (
	// defaultStop is how long a stop may take when the request has no deadline: the agent's default.
	defaultStop = 30 * time.Second
	// maxMessage is the longest error text on the wire. It travels in a header, percent-encoded, and clients refuse headers of
	// more than 16 KiB.
	maxMessage = 2048
)

// service makes calls of life of messages, and messages of their results.
type service struct {
	wire.UnimplementedGuestAgentPluginServer
	life *life
}

func (s *service) Start(ctx context.Context, request *wire.StartRequest) (*wire.StartResponse, error) {
	start := Start{State: StateDir(request.GetConfig().GetStateDirectoryPath())}
	switch config := request.GetServiceConfig().(type) {
	case *wire.StartRequest_StringConfig:
		start.Config = TextConfig(config.StringConfig)
	case *wire.StartRequest_StructConfig:
		start.Config = structConfig(config.StructConfig)
	}
	if err := s.life.start(ctx, start); err != nil {
		return nil, refusal(err)
	}
	return &wire.StartResponse{}, nil
}

func (s *service) Apply(ctx context.Context, request *wire.ApplyRequest) (*wire.ApplyResponse, error) {
	var config Config
	switch given := request.GetServiceConfig().(type) {
	case *wire.ApplyRequest_StringConfig:
		config = TextConfig(given.StringConfig)
	case *wire.ApplyRequest_StructConfig:
		config = structConfig(given.StructConfig)
	}
	if err := s.life.apply(ctx, config); err != nil {
		return nil, refusal(err)
	}
	return &wire.ApplyResponse{}, nil
}

func (s *service) GetStatus(ctx context.Context, request *wire.GetStatusRequest) (*wire.Status, error) {
	answer, err := s.life.status(ctx, request.Data)
	if err != nil {
		return nil, refusal(err)
	}
	return &wire.Status{Code: answer.Code, Results: valid(answer.Results)}, nil
}

func (s *service) Stop(_ context.Context, request *wire.StopRequest) (*wire.StopResponse, error) {
	stop := Stop{Cleanup: request.GetCleanup(), Deadline: request.GetDeadline().AsDuration()}
	// A zero, negative or absent deadline means that the sender set none.
	if stop.Deadline <= 0 {
		stop.Deadline = defaultStop
	}
	if err := s.life.end(stop); err != nil {
		return nil, refusal(err)
	}
	return &wire.StopResponse{}, nil
}

// refusal is the status of a call that failed. It is UNIMPLEMENTED only when the plugin answered so, because the agent then
// restarts the plugin. It is never UNKNOWN or UNAVAILABLE, because a broken connection looks like these.
func refusal(err error) error {
	var badConfig *BadConfig
	var late *tooLate
	code := codes.Internal
	switch {
	case isPanic(err):
	case errors.Is(err, errNotStarted), errors.Is(err, errStopping):
		code = codes.FailedPrecondition
	case errors.Is(err, ErrUnsupported):
		code = codes.Unimplemented
	case errors.As(err, &badConfig):
		code = codes.InvalidArgument
	case errors.As(err, &late):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, cut(validText(err.Error()), maxMessage))
}
