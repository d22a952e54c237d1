// Package admission is for programs that decide what may be deployed on a machine: guest-agent asks one before it deploys
// any content, and deploys only what it admits.
//
//	func main() {
//		admission.Main("1.0", func(ctx context.Context, check *admission.Check) error {
//			if check.Package == "trusted" {
//				return nil
//			}
//			return admission.Denyf("%s is not on the list", check.Package)
//		})
//	}
//
// The agent starts the program named by admission.command when it first needs it, sends it a port and a ticket on its standard
// input, and closes that input to ask it to end. It remembers answers, so a judge judges the same content once. The protocol
// is CIPD's deployment admission; docs/admission.md in the agent's sources describes the rest.
package admission

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	callticket "github.com/guest-agent/guest-agent/sdk/go/internal/ticket"
	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/cipdplugin"
)

const (
	protocolVersion = 1
	// maxHandshake is the longest handshake, in bytes.
	maxHandshake = 64 << 10
	// callTimeout is how long one call may take.
	callTimeout = 20 * time.Second
	// pageSize is how many metadata entries a request asks for.
	pageSize = 100
	// maxReason is the longest reason of a denial, in bytes.
	maxReason = 2048
)

// Judge decides about a check: nil admits, an error denies. It is called for each check, concurrently if several wait. The
// text of the error is shown to operators and sent to the control plane: never put a secret into it. A judge that panics
// denies.
type Judge func(ctx context.Context, check *Check) error

// Denial is an error with a code of gRPC. Other errors of a judge deny with INTERNAL.
type Denial struct {
	Code   codes.Code
	Reason string
}

// Denyf is a denial with PERMISSION_DENIED.
func Denyf(format string, arguments ...any) error {
	return &Denial{Code: codes.PermissionDenied, Reason: fmt.Sprintf(format, arguments...)}
}

// Error is the reason.
func (d *Denial) Error() string { return d.Reason }

// Check is a question of the agent: may this content be deployed?
type Check struct {
	// ServiceURL is the control plane that deploys.
	ServiceURL string
	// Package is the plugin's name.
	Package string
	// SHA256 is that of its archive, in hexadecimal digits; of a plugin that came with the machine, that of its entry point.
	SHA256 string

	admission *wire.Admission
	host      wire.HostClient
}

// Metadata is one metadata entry of a package's content.
type Metadata struct {
	// Key is a word such as revision, source-url or entry-point.
	Key   string
	Value []byte
	// AttachedAt is when the agent recorded the entry; zero where it does not say.
	AttachedAt time.Time
}

// Main answers checks until the agent asks the plugin to end, and ends the process: the whole main of an admission plugin. The
// agent's log shows the version.
func Main(version string, judge Judge) {
	if err := Serve(context.Background(), os.Stdin, version, judge); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Serve answers checks until input ends, which begins with the handshake, or until ctx ends.
func Serve(ctx context.Context, input io.Reader, version string, judge Judge) error {
	reader := bufio.NewReaderSize(input, maxHandshake)
	port, ticket, err := handshake(reader)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	gone := make(chan struct{})
	go func() {
		// The agent sends nothing more; the end of the input and an error both mean the end.
		_, _ = io.Copy(io.Discard, reader)
		close(gone)
		end()
	}()
	address := fmt.Sprintf("passthrough:///127.0.0.1:%d", port)
	options := append(callticket.Options("x-plugin-ticket", ticket),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	connection, err := grpc.NewClient(address, options...)
	if err != nil {
		return fmt.Errorf("cannot connect to the agent: %w", err)
	}
	defer connection.Close()
	err = answerAll(ctx, connection, version, judge)
	select {
	case <-gone:
		return nil // asked to go
	default:
	}
	// The agent ended the stream and is about to close the standard input.
	if err == nil || errors.Is(err, io.EOF) || status.Code(err) == codes.Aborted {
		return nil
	}
	return fmt.Errorf("the agent says: %s (%s)", status.Convert(err).Message(), status.Code(err))
}

func handshake(input *bufio.Reader) (port uint16, ticket string, err error) {
	const hint = "no handshake on the standard input; the agent starts this program, see admission.command"
	line, err := input.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, "", fmt.Errorf("%s: %w", hint, err)
	}
	var given struct {
		Port   uint16 `json:"port"`
		Ticket string `json:"ticket"`
	}
	// An error of the parser may quote its input, which holds a secret.
	if json.Unmarshal(line, &given) != nil || given.Port == 0 || given.Ticket == "" {
		return 0, "", errors.New(hint + ": not the JSON of a handshake")
	}
	return given.Port, given.Ticket, nil
}

func answerAll(ctx context.Context, connection *grpc.ClientConn, version string, judge Judge) error {
	admissions, host := wire.NewAdmissionsClient(connection), wire.NewHostClient(connection)
	request := &wire.ListAdmissionsRequest{ProtocolVersion: protocolVersion, PluginVersion: version}
	checks, err := admissions.ListAdmissions(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	var judging sync.WaitGroup
	defer judging.Wait()
	for {
		admission, err := checks.Recv()
		if err != nil {
			return err
		}
		judging.Go(func() {
			check := &Check{
				ServiceURL: admission.GetServiceUrl(), Package: admission.GetPackage(), SHA256: admission.GetInstance().GetHexDigest(),
				admission: admission, host: host,
			}
			verdict := &wire.ResolveAdmissionRequest{AdmissionId: admission.GetAdmissionId(), Status: statusOf(judged(ctx, judge, check))}
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			if _, err := admissions.ResolveAdmission(ctx, verdict); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "cannot send an answer:", status.Convert(err).Message())
			}
		})
	}
}

// judged makes a denial of a panic.
func judged(ctx context.Context, judge Judge, check *Check) (verdict error) {
	defer func() {
		if value := recover(); value != nil {
			fmt.Fprintln(os.Stderr, "panic:", value)
			verdict = &Denial{Code: codes.Internal, Reason: "the admission plugin panicked over it"}
		}
	}()
	return judge(ctx, check)
}

func statusOf(verdict error) *rpc.Status {
	if verdict == nil {
		return &rpc.Status{}
	}
	code := codes.Internal
	var denial *Denial
	if errors.As(verdict, &denial) {
		code = denial.Code
	}
	if code == codes.OK {
		code = codes.Unknown // a denial is never an admission
	}
	reason := strings.ToValidUTF8(verdict.Error(), "\uFFFD")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return &rpc.Status{Code: int32(code), Message: reason}
}

// Metadata are the entries of the content, newest first: those with these keys, or all if there are no keys. An error is a
// denial, which a judge may return.
func (c *Check) Metadata(ctx context.Context, keys ...string) ([]Metadata, error) {
	var all []Metadata
	token := ""
	for {
		page, err := c.page(ctx, keys, token)
		if err != nil {
			reason := "its metadata cannot be read: " + status.Convert(err).Message()
			return nil, &Denial{Code: codes.Unavailable, Reason: reason}
		}
		for _, entry := range page.GetMetadata() {
			one := Metadata{Key: entry.GetKey(), Value: entry.GetValue()}
			if at := entry.GetAttachedTs(); at.IsValid() {
				one.AttachedAt = at.AsTime()
			}
			all = append(all, one)
		}
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

func (c *Check) page(ctx context.Context, keys []string, token string) (*wire.ListMetadataResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.host.ListMetadata(ctx, &wire.ListMetadataRequest{
		ServiceUrl: c.ServiceURL, Package: c.Package, Instance: c.admission.GetInstance(), Keys: keys, PageSize: pageSize, PageToken: token,
	})
}

// Log writes a line into the agent's log. A failure to write it is ignored.
func (c *Check) Log(ctx context.Context, level slog.Level, message string) {
	severity := "error"
	switch {
	case level < slog.LevelInfo:
		severity = "debug"
	case level < slog.LevelWarn:
		severity = "info"
	case level < slog.LevelError:
		severity = "warning"
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, _ = c.host.Log(ctx, &wire.LogRequest{Severity: severity, Message: strings.ToValidUTF8(message, "\uFFFD")})
}
