"""What methods of a plugin raise. Their texts are shown to operators, so they must not hold secrets."""


class PluginError(Exception):
    """A failure with a text for operators. Any other exception is a mistake in the plugin: its traceback is logged."""


class Unsupported(PluginError):
    """The plugin does not support the call. From `apply` it makes the agent restart the plugin with the configuration."""

    def __init__(self, text: str = "not supported by this plugin") -> None:
        super().__init__(text)


class BadConfig(PluginError):
    """The configuration cannot be used; trying again with the same one is pointless. The reason holds no values of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"bad configuration: {reason}")


class NotStarted(PluginError):
    """Apply was called before Start."""


class Stopping(PluginError):
    """Start or Apply was called after Stop."""


class TooLate(PluginError):
    """A stop reached its deadline."""


class Crashed(PluginError):
    """A method raised what it should not."""
