package plugin

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// What one answer to a health check may hold.
const (
	maxProblems = 32
	maxReason   = 512
)

// Health remembers what is wrong, so that health checks are answered from memory. The zero value is healthy. It may be used
// from several goroutines.
//
//	beat := g.health.Expect("worker", time.Minute) // in Start
//	beat.Beat()                                    // in the worker, after each round
//	g.health.Fail("database", "cannot connect")    // where something fails
//	g.health.Recover("database")                   // and where it works again
type Health struct {
	mutex    sync.Mutex
	problems map[string]string
	beats    map[string]*Heartbeat
	now      func() time.Time // time.Now, but in tests
}

// Heartbeat is a part of a plugin that has to show that it lives.
type Heartbeat struct {
	health *Health
	part   string
	within time.Duration
	last   time.Time
}

// Fail says that a part does not work, and why; a later reason replaces an earlier one. Reasons hold no secrets.
func (h *Health) Fail(part, reason string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.problems == nil {
		h.problems = map[string]string{}
	}
	h.problems[part] = cut(reason, maxReason)
}

// Recover says that a part works.
func (h *Health) Recover(part string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	delete(h.problems, part)
}

// Check is Recover where err is nil, and Fail otherwise.
func (h *Health) Check(part string, err error) {
	if err != nil {
		h.Fail(part, err.Error())
	} else {
		h.Recover(part)
	}
}

// Expect makes a part unhealthy that does not beat within this time, from now on.
func (h *Health) Expect(part string, within time.Duration) *Heartbeat {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.beats == nil {
		h.beats = map[string]*Heartbeat{}
	}
	beat := &Heartbeat{health: h, part: part, within: within, last: h.time()}
	h.beats[part] = beat
	return beat
}

// Beat shows that the part lives.
func (b *Heartbeat) Beat() {
	b.health.mutex.Lock()
	defer b.health.mutex.Unlock()
	b.last = b.health.time()
}

// End says that the part has nothing more to do; its silence is no problem from now on.
func (b *Heartbeat) End() {
	b.health.mutex.Lock()
	defer b.health.mutex.Unlock()
	if b.health.beats[b.part] == b {
		delete(b.health.beats, b.part)
	}
}

// Status is healthy, or code 1 with a line per problem, sorted.
func (h *Health) Status() Status {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	lines := make([]string, 0, len(h.problems))
	for part, reason := range h.problems {
		lines = append(lines, part+": "+reason)
	}
	for part, beat := range h.beats {
		if silent := h.time().Sub(beat.last); silent > beat.within {
			line := fmt.Sprintf("%s: silent for %s, expected within %s", part, silent.Round(time.Second/10), beat.within)
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return Healthy()
	}
	slices.Sort(lines)
	if more := len(lines) - maxProblems; more > 0 {
		lines = append(lines[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return Status{Code: 1, Results: lines}
}

func (h *Health) time() time.Time {
	if h.now != nil {
		return h.now()
	}
	return time.Now()
}
