module example.com/greeter

go 1.26.0

require github.com/guest-agent/guest-agent/sdk/go v0.0.0

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

// Within this repository. A plugin elsewhere has no such line and asks for a version.
replace github.com/guest-agent/guest-agent/sdk/go => ../../sdk/go
