// An admission plugin: it admits the plugins that are its arguments, and denies all others.
//
//	[admission]
//	command = ["/usr/lib/guest-agent/policy", "backup", "metrics"]
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/guest-agent/guest-agent/sdk/go/admission"
)

func main() {
	admission.Main("policy 1.0", func(ctx context.Context, check *admission.Check) error {
		if !slices.Contains(os.Args[1:], check.Package) {
			return admission.Denyf("%s is not on the list", check.Package)
		}
		revision, err := check.Metadata(ctx, "revision")
		if err != nil {
			return err
		}
		for _, entry := range revision {
			check.Log(ctx, slog.LevelInfo, fmt.Sprintf("%s %s is on the list", check.Package, entry.Value))
		}
		return nil
	})
}
