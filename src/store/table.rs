//! The table that a key belongs to: the key's first byte.

use guest_agent_actors::ports::Table;

/// The first byte of a table's keys. Part of the format on disk.
pub(super) fn tag(table: Table) -> u8 {
    match table {
        Table::Plugins => b'p',
        Table::Inbox => b'i',
        Table::Outbox => b'o',
        Table::History => b'h',
        Table::Facts => b'f',
        Table::Registry => b'r',
        Table::Audit => b'a',
    }
}

/// The table whose keys begin with `byte`.
pub(super) fn table_of_tag(byte: u8) -> Option<Table> {
    Table::ALL.into_iter().find(|&table| tag(table) == byte)
}
