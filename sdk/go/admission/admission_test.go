package admission_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/guest-agent/guest-agent/sdk/go/admission"
	"github.com/guest-agent/guest-agent/sdk/go/plugintest"
)

func TestAJudgeAdmitsDeniesFailsAndPanics(t *testing.T) {
	judge := func(ctx context.Context, check *admission.Check) error {
		switch check.Package {
		case "good":
			known, err := check.Metadata(ctx, "revision")
			if err != nil {
				return err
			}
			check.Log(ctx, slog.LevelWarn, "revision "+string(known[0].Value)+" of "+check.SHA256)
			return nil
		case "bad":
			return admission.Denyf("%s is not on the list", check.Package)
		case "mistaken":
			return &admission.Denial{Code: codes.OK, Reason: "a denial all the same"}
		case "broken":
			return errors.New("the list cannot be read")
		default:
			panic("over it")
		}
	}
	questions := []plugintest.Question{
		{Package: "good", SHA256: "abc", Metadata: map[string]string{"revision": "7", "other": "x"}},
		{Package: "bad"}, {Package: "mistaken"}, {Package: "broken"}, {Package: "panic"},
	}
	verdicts, log := plugintest.Judge(t, judge, questions...)
	for name, want := range map[string]plugintest.Verdict{
		"good":     {Code: codes.OK},
		"bad":      {Code: codes.PermissionDenied, Reason: "bad is not on the list"},
		"mistaken": {Code: codes.Unknown, Reason: "a denial all the same"},
		"broken":   {Code: codes.Internal, Reason: "the list cannot be read"},
		"panic":    {Code: codes.Internal, Reason: "the admission plugin panicked over it"},
	} {
		if verdicts[name] != want {
			t.Errorf("%s: %+v", name, verdicts[name])
		}
	}
	if strings.Join(log, "; ") != "warning: revision 7 of abc" {
		t.Error(log)
	}
}

func TestWithoutAHandshakeThereIsAnErrorThatQuotesNothing(t *testing.T) {
	judge := func(context.Context, *admission.Check) error { return nil }
	for _, line := range []string{"", "hunter2\n", `{"port":70000,"ticket":"hunter2"}`, strings.Repeat("hunter2", 1<<20)} {
		err := admission.Serve(context.Background(), strings.NewReader(line), "1", judge)
		if err == nil || !strings.Contains(err.Error(), "no handshake") || strings.Contains(err.Error(), "hunter2") {
			t.Error(err)
		}
	}
}
