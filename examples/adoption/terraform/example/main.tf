# Ten machines on AWS. They get the join token from Secrets Manager, with the role of their instance profile, so that it is
# neither in the state nor in their user data.

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }
}

variable "image" {
  description = "An image with cloud-init and the AWS command line."
  type        = string
}

variable "instance_profile" {
  description = "Instance profile that may read the secret guest-agent/join-token."
  type        = string
}

module "guest_agent" {
  source = "../"

  server         = "https://fleet.example:7444"
  ca_sha256      = "6d72f8a4159134b598639966a8d526786f6035ef28677fb341dae84fdbc8f9b5"
  package_url    = "https://packages.example/guest-agent_0.1.0-1_amd64.deb"
  package_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
  token_command  = "aws secretsmanager get-secret-value --secret-id guest-agent/join-token --query SecretString --output text"
}

resource "aws_instance" "web" {
  count                = 10
  ami                  = var.image
  instance_type        = "t3.small"
  iam_instance_profile = var.instance_profile
  user_data            = module.guest_agent.user_data

  # Programs on the machine that have no token of the metadata service do not read its user data.
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  # A machine that is there is not made anew when the package changes.
  lifecycle {
    ignore_changes = [user_data]
  }
}
