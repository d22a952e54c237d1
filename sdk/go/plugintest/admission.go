package plugintest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/guest-agent/guest-agent/sdk/go/admission"
	cipd "github.com/guest-agent/guest-agent/sdk/go/internal/wire/cipd"
	wire "github.com/guest-agent/guest-agent/sdk/go/internal/wire/cipdplugin"
)

// Question is content that an admission plugin is asked about.
type Question struct {
	Package string
	SHA256  string
	// Metadata are its metadata entries.
	Metadata map[string]string
}

// Verdict is the answer about a package.
type Verdict struct {
	// Code is OK where it is admitted.
	Code   codes.Code
	Reason string
}

const ticket = "the ticket of a test"

// asker is an agent that asks one admission plugin.
type asker struct {
	wire.UnimplementedAdmissionsServer
	wire.UnimplementedHostServer

	questions []Question
	mutex     sync.Mutex
	verdicts  map[string]Verdict
	log       []string
	answered  chan struct{}
}

// Judge asks an admission plugin about content as the agent does, and returns its verdicts by package, and the lines that it
// wrote into the agent's log.
func Judge(t testing.TB, judge admission.Judge, questions ...Question) (verdicts map[string]Verdict, log []string) {
	t.Helper()
	agent := &asker{questions: questions, verdicts: map[string]Verdict{}, answered: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	server := grpc.NewServer()
	wire.RegisterAdmissionsServer(server, agent)
	wire.RegisterHostServer(server, agent)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	input, plugin := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- admission.Serve(ctx, input, "test", judge) }()
	line, err := json.Marshal(map[string]any{"port": listener.Addr().(*net.TCPAddr).Port, "ticket": ticket})
	check(t, err)
	_, err = plugin.Write(append(line, '\n'))
	check(t, err)
	select {
	case <-agent.answered:
	case <-ctx.Done():
		t.Fatal("the plugin does not answer")
	}
	check(t, plugin.Close())
	check(t, <-ended)
	agent.mutex.Lock()
	defer agent.mutex.Unlock()
	return agent.verdicts, agent.log
}

func authorized(ctx context.Context) error {
	given, _ := metadata.FromIncomingContext(ctx)
	if values := given.Get("x-plugin-ticket"); len(values) != 1 || values[0] != ticket {
		return status.Error(codes.Unauthenticated, "no ticket")
	}
	return nil
}

// ListAdmissions is a call of the plugin.
func (a *asker) ListAdmissions(request *wire.ListAdmissionsRequest, stream wire.Admissions_ListAdmissionsServer) error {
	if err := authorized(stream.Context()); err != nil {
		return err
	}
	if request.GetProtocolVersion() != 1 {
		return status.Error(codes.FailedPrecondition, "another version")
	}
	for _, question := range a.questions {
		instance := &cipd.ObjectRef{HashAlgo: cipd.HashAlgo_SHA256, HexDigest: question.SHA256}
		asked := &wire.Admission{AdmissionId: question.Package, ServiceUrl: "local", Package: question.Package, Instance: instance}
		if err := stream.Send(asked); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return status.Error(codes.Aborted, "the agent closes")
}

// ResolveAdmission is a call of the plugin.
func (a *asker) ResolveAdmission(ctx context.Context, request *wire.ResolveAdmissionRequest) (*emptypb.Empty, error) {
	if err := authorized(ctx); err != nil {
		return nil, err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	verdict := Verdict{Code: codes.Code(request.GetStatus().GetCode()), Reason: request.GetStatus().GetMessage()}
	if _, again := a.verdicts[request.GetAdmissionId()]; !again {
		a.verdicts[request.GetAdmissionId()] = verdict
		if len(a.verdicts) == len(a.questions) {
			close(a.answered)
		}
	}
	return &emptypb.Empty{}, nil
}

// Log is a call of the plugin.
func (a *asker) Log(ctx context.Context, request *wire.LogRequest) (*emptypb.Empty, error) {
	if err := authorized(ctx); err != nil {
		return nil, err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.log = append(a.log, request.GetSeverity()+": "+request.GetMessage())
	return &emptypb.Empty{}, nil
}

// ListMetadata is a call of the plugin.
func (a *asker) ListMetadata(ctx context.Context, request *wire.ListMetadataRequest) (*wire.ListMetadataResponse, error) {
	if err := authorized(ctx); err != nil {
		return nil, err
	}
	answer := &wire.ListMetadataResponse{}
	for _, question := range a.questions {
		for key, value := range question.Metadata {
			wanted := len(request.GetKeys()) == 0
			for _, one := range request.GetKeys() {
				wanted = wanted || one == key
			}
			if question.Package == request.GetPackage() && wanted {
				answer.Metadata = append(answer.Metadata, &cipd.InstanceMetadata{Key: key, Value: []byte(value)})
			}
		}
	}
	return answer, nil
}
