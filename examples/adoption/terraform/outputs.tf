output "user_data" {
  description = "Cloud-init user data."
  value       = local.user_data
  sensitive   = true

  precondition {
    condition     = (var.token == null) != (var.token_command == null)
    error_message = "Give either token or token_command."
  }
}
