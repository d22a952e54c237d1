variable "server" {
  description = "Address of the fleet's enrolment server."
  type        = string

  validation {
    condition     = can(regex("^https://[A-Za-z0-9.:\\[\\]-]+$", var.server))
    error_message = "It has to be https://HOST:PORT."
  }
}

variable "ca_sha256" {
  description = "Fingerprint of the fleet's authority, as `guest-fleet ca show` prints it. It is not secret."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.ca_sha256))
    error_message = "It has to be 64 hexadecimal digits."
  }
}

variable "package_url" {
  description = "Where the machine gets the package, a .deb or an .rpm."
  type        = string

  validation {
    condition     = can(regex("^(https|http|file)://[A-Za-z0-9._~:/%+-]+[.](deb|rpm)$", var.package_url))
    error_message = "It has to be the URL of a .deb or an .rpm, without a query."
  }
}

variable "package_sha256" {
  description = "SHA-256 of the package."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package_sha256))
    error_message = "It has to be 64 hexadecimal digits."
  }
}

variable "token" {
  description = "Join token. It is in the state and in the user data of the machine: prefer token_command."
  type        = string
  default     = null
  sensitive   = true

  validation {
    condition     = var.token == null || can(regex("^[a-z0-9-]+[.][A-Za-z0-9]+$", var.token))
    error_message = "It has to be a join token, as `guest-fleet token create` prints it."
  }
}

variable "token_command" {
  description = "Shell command by which the machine gets the join token, from a store of secrets."
  type        = string
  default     = null
}
