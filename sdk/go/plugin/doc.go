// Package plugin is the SDK of guest-agent for plugins in Go: implement [Plugin], pass it to [Main], and guest-agent can
// install, start, configure, watch, upgrade and remove the program.
//
//	type greeter struct {
//		plugin.Base
//		health plugin.Health
//	}
//
//	func (g *greeter) Start(ctx context.Context, start plugin.Start) error {
//		settings := struct{ Greeting string }{Greeting: "hello"}
//		if err := start.Config.Decode(&settings); err != nil {
//			return err
//		}
//		return start.State.Write("greeting", []byte(settings.Greeting))
//	}
//
//	func (g *greeter) Status(context.Context) plugin.Status { return g.health.Status() }
//
//	func main() { plugin.Main(&greeter{}) }
//
// # The life of a plugin
//
// The agent launches the program with the plugin's own arguments followed by three of the agent's. The plugin listens on
// the address in these arguments and answers four calls, which become calls of the methods of [Plugin]:
//
//	agent ── exec ──►  Main: arguments, error log, socket (owner-only)
//	      ── Start ──►      Start            once, until it succeeds
//	      ── GetStatus ──►  Status, Answer   every few seconds, and for every question
//	      ── Apply ──►      Apply, VMEvent   a new configuration, or news of the machine
//	      ── Stop ──►       Stop             once; then the server drains and the process exits with 0
//
// SIGTERM and SIGINT do the same as Stop. A panic in a method fails that call alone and is written to the error log, whose
// last lines the agent puts into its crash events; so is a panic in any other goroutine, which ends the process.
//
// # Beside this package
//
// Package registry offers things to other plugins and finds theirs. Package admission is for programs that decide what may
// be deployed. Package plugintest tests plugins without an agent. A program that runs and ends instead (`plugin_type`
// ONE_SHOT) is one call of [RunOnce].
package plugin
