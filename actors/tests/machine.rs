//! The plugin machine, without actors: its table, its laws, every life of a small world, its diagram and its records.

mod lifecycle_diagram;
mod local_laws;
mod machine_laws;
mod machine_tables;
mod model_check;
mod stored_records;

/// What several of these tests build their lives with.
mod support {
    pub(crate) mod carried;
    pub(crate) mod ends;
    pub(crate) mod world;
}
