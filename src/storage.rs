//! Records on sled.
