//! The plugin machine, without actors: its table, its laws, every life of a small world, its diagram and its records.

mod lifecycle_diagram;
mod local_laws;
mod machine_laws;
mod machine_tables;
mod model_check;
mod stored_records;

/// The small world, and the accounts of its orders, that several of these tests share.
mod support {
    pub(crate) mod carried;
    pub(crate) mod ends;
    pub(crate) mod world;
}
