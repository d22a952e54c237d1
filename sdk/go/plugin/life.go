package plugin

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"
)

// longestStop keeps arithmetic on hostile numbers from overflowing.
const longestStop = 24 * time.Hour

// life keeps the promises about the order of calls, panics and deadlines. It knows nothing of gRPC, sockets or signals.
type life struct {
	plugin Plugin
	log    ErrorLog

	// work is held while Start, Apply or VMEvent runs.
	work    chan struct{}
	started bool

	// lives ends with the first request to stop.
	lives    context.Context
	stopping context.CancelFunc

	stop    sync.Once
	stopped error
	// ended is closed when Stop is over; the process should be gone by the deadline.
	ended    chan struct{}
	deadline time.Time
}

func newLife(plugin Plugin, log ErrorLog) *life {
	lives, stopping := context.WithCancel(context.Background())
	return &life{
		plugin: plugin, log: log, work: make(chan struct{}, 1), lives: lives, stopping: stopping, ended: make(chan struct{}),
	}
}

// start starts the plugin, unless it is started already.
func (l *life) start(ctx context.Context, start Start) error {
	return l.alone(ctx, func() error {
		if l.started {
			return nil
		}
		err := l.contained("start", func() error { return l.plugin.Start(l.lives, start) })
		l.started = err == nil
		return err
	})
}

// apply hands over a configuration or news of the machine.
func (l *life) apply(ctx context.Context, config Config) error {
	return l.alone(ctx, func() error {
		if !l.started {
			return errNotStarted
		}
		if event, ok := config.vmEvent(); ok {
			return l.contained("the VM event", func() error { return l.plugin.VMEvent(l.lives, event) })
		}
		return l.contained("apply", func() error { return l.plugin.Apply(l.lives, config) })
	})
}

// alone runs work that never runs beside other work, and that goes on when its caller gives up.
func (l *life) alone(ctx context.Context, work func() error) error {
	select {
	case l.work <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.work }()
	if l.lives.Err() != nil {
		return errStopping
	}
	return work()
}

func (l *life) status(ctx context.Context, question *string) (Status, error) {
	var status Status
	err := l.contained("status", func() error {
		if question == nil {
			status = l.plugin.Status(ctx)
		} else {
			status = l.plugin.Answer(ctx, *question)
		}
		return nil
	})
	return status, err
}

// end stops the plugin within the deadline. A second call waits for the first stop and returns its result.
func (l *life) end(stop Stop) error {
	stop.Deadline = min(stop.Deadline, longestStop)
	l.stop.Do(func() {
		l.deadline = time.Now().Add(stop.Deadline)
		l.stopping()
		ctx, cancel := context.WithDeadline(context.Background(), l.deadline)
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- l.contained("stop", func() error { return l.plugin.Stop(ctx, stop) }) }()
		select {
		case l.stopped = <-over:
		case <-ctx.Done():
			l.stopped = &tooLate{allowed: stop.Deadline.String()}
		}
		close(l.ended)
	})
	<-l.ended
	return l.stopped
}

// contained makes an error of a panic.
func (l *life) contained(method string, call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			panicked := &panicked{method: method, value: value, stack: string(debug.Stack())}
			text := panicked.Error() + "\n" + panicked.stack
			Logger().Error(panicked.Error())
			if failed := l.log.Append(text); failed != nil {
				Logger().Error("cannot write the error log", "error", failed)
			}
			err = panicked
		}
	}()
	return call()
}

// isPanic says whether an error is a panic of a method.
func isPanic(err error) bool {
	var it *panicked
	return errors.As(err, &it)
}
