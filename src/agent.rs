//! Wiring: ports, actors, signals.
