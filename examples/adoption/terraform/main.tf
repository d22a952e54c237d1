# Makes the user data by which a machine installs guest-agent and becomes an agent of a fleet: docs/fleet-adoption.md.
# It needs no provider and works with OpenTofu as well.

terraform {
  required_version = ">= 1.6"
}

locals {
  get_token = var.token_command == null ? "cat /run/guest-agent-adopt/token" : var.token_command

  user_data = templatefile("${path.module}/user-data.yaml.tftpl", {
    package_url    = var.package_url
    package_sha256 = var.package_sha256
    server         = var.server
    ca_sha256      = var.ca_sha256
    token          = var.token == null ? "" : var.token
    # JSON is YAML, whatever the command is.
    get_token = jsonencode(local.get_token)
  })
}
