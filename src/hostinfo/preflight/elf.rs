//! The parts of an ELF file that decide whether the kernel will execute it.
//!
//! Reads what `execve` reads, within the same bounds, and nothing else: the header, the table of
//! program headers, and the path of the program loader. What the kernel would refuse is refused
//! with the reason, which it does not give. Any bytes are fine; nothing is allocated that the
//! bounds do not allow.

use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Most bytes of a table of program headers; the kernel's number.
const TABLE_MAX: u64 = 65536;

/// Most bytes of a loader's path, its end included; the kernel's number.
const PATH_MAX: u64 = 4096;

/// The program header that names the loader.
const PT_INTERP: u32 = 3;

/// Kinds of files that can be executed.
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

/// The machine that an executable is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// The processor, as ELF numbers them.
    pub machine: u16,
    /// Bytes of an address.
    pub class: Class,
    /// The order of its bytes.
    pub order: Order,
    /// The path of its loader, if the kernel alone does not load it.
    pub loader: Option<PathBuf>,
}

/// Size of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 32 bits.
    Small,
    /// 64 bits.
    Large,
}

/// Order of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

/// Why a file that begins like an ELF file is not an executable.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// It cannot be read, or ends before its headers do.
    #[error("its headers cannot be read")]
    Read(#[source] io::Error),
    /// Its header is not that of an ELF file.
    #[error("its header is damaged: {0}")]
    Damaged(&'static str),
    /// It is an ELF file of another kind than an executable.
    #[error("it is {0}, not an executable")]
    NotExecutable(&'static str),
}

/// The offsets of the fields, by class.
struct Layout {
    header: usize,
    table_at: usize,
    entry_size_at: usize,
    count_at: usize,
    entry: usize,
    offset_at: usize,
    size_at: usize,
}

const SMALL: Layout = Layout {
    header: 52,
    table_at: 28,
    entry_size_at: 42,
    count_at: 44,
    entry: 32,
    offset_at: 4,
    size_at: 16,
};

const LARGE: Layout = Layout {
    header: 64,
    table_at: 32,
    entry_size_at: 54,
    count_at: 56,
    entry: 56,
    offset_at: 8,
    size_at: 32,
};

// === impl Elf ===

impl Elf {
    /// Reads the headers of a file that begins with the magic number.
    ///
    /// # Errors
    /// The kernel would refuse the file, or it cannot be read.
    pub fn read(file: &mut (impl Read + Seek)) -> Result<Self, ElfError> {
        let ident = part(file, 0, 16)?;
        let class = match ident.get(4) {
            Some(1) => Class::Small,
            Some(2) => Class::Large,
            _ => return Err(ElfError::Damaged("its addresses have neither 32 nor 64 bits")),
        };
        let order = match ident.get(5) {
            Some(1) => Order::Little,
            Some(2) => Order::Big,
            _ => return Err(ElfError::Damaged("the order of its bytes is unknown")),
        };
        let layout = match class {
            Class::Small => SMALL,
            Class::Large => LARGE,
        };
        let number = |bytes: &[u8], at: usize, length: usize| order.number(bytes, at, length);
        let header = part(file, 0, layout.header as u64)?;
        match order.short(&header, 16) {
            ET_EXEC | ET_DYN => {}
            1 => return Err(ElfError::NotExecutable("an object file that is not linked")),
            4 => return Err(ElfError::NotExecutable("a core dump")),
            _ => return Err(ElfError::NotExecutable("an ELF file of an unknown kind")),
        }
        let machine = order.short(&header, 18);
        let address = match class {
            Class::Small => 4,
            Class::Large => 8,
        };
        let (table, count) =
            (number(&header, layout.table_at, address), order.short(&header, layout.count_at));
        if usize::from(order.short(&header, layout.entry_size_at)) != layout.entry {
            return Err(ElfError::Damaged("its program headers have a wrong size"));
        }
        let bytes = u64::from(count) * layout.entry as u64;
        if count == 0 || bytes > TABLE_MAX {
            return Err(ElfError::Damaged("it has no program headers, or too many"));
        }
        let table = part(file, table, bytes)?;
        let named = table
            .chunks_exact(layout.entry)
            .find(|entry| number(entry, 0, 4) == u64::from(PT_INTERP));
        let loader = match named {
            None => None,
            Some(entry) => {
                let offset = number(entry, layout.offset_at, address);
                let size = number(entry, layout.size_at, address);
                Some(loader(file, offset, size)?)
            }
        };
        Ok(Self { machine, class, order, loader })
    }
}

// === impl Order ===

impl Order {
    fn number(self, bytes: &[u8], at: usize, length: usize) -> u64 {
        let bytes = bytes.get(at..at + length).unwrap_or_default();
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        match self {
            Self::Little => bytes.iter().rev().fold(0, add),
            Self::Big => bytes.iter().fold(0, add),
        }
    }

    fn short(self, bytes: &[u8], at: usize) -> u16 {
        u16::try_from(self.number(bytes, at, 2)).unwrap_or_default()
    }
}

fn loader(file: &mut (impl Read + Seek), offset: u64, size: u64) -> Result<PathBuf, ElfError> {
    if !(2..=PATH_MAX).contains(&size) {
        return Err(ElfError::Damaged("the path of its program loader is empty or too long"));
    }
    let mut path = part(file, offset, size)?;
    if path.pop() != Some(0) {
        return Err(ElfError::Damaged("the path of its program loader has no end"));
    }
    // Like the kernel, up to the first NUL.
    path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(path.len()));
    Ok(std::ffi::OsString::from_vec(path).into())
}

/// So many bytes from this offset. Call it with bounded lengths only.
fn part(file: &mut (impl Read + Seek), at: u64, length: u64) -> Result<Vec<u8>, ElfError> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(at)).map_err(ElfError::Read)?;
    file.by_ref().take(length).read_to_end(&mut bytes).map_err(ElfError::Read)?;
    if bytes.len() as u64 != length {
        return Err(ElfError::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    /// A 64-bit header with one program header, for a loader if there is a path.
    pub(crate) fn elf(machine: u16, loader: Option<&str>) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64 + 56, 0);
        bytes[16] = 2;
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = 1;
        if let Some(path) = loader {
            bytes[64] = 3;
            bytes[72] = 120;
            bytes[96..104].copy_from_slice(&(path.len() as u64 + 1).to_le_bytes());
            bytes.extend_from_slice(path.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Vec<u8>), part: &str) {
        let mut bytes = elf(62, Some("/lib/ld.so"));
        change(&mut bytes);
        let error = Elf::read(&mut Cursor::new(bytes)).expect_err("it should be refused");
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn the_machine_and_the_loader_are_read() {
        let read = |bytes: Vec<u8>| Elf::read(&mut Cursor::new(bytes)).expect("an executable");
        let found = read(elf(183, Some("/lib/ld.so")));
        assert_eq!((found.machine, found.class, found.order), (183, Class::Large, Order::Little));
        assert_eq!(found.loader, Some("/lib/ld.so".into()));
        assert_eq!(read(elf(62, None)).loader, None);
        let me = std::env::current_exe().expect("a path");
        let me = Elf::read(&mut std::fs::File::open(me).expect("readable")).expect("an executable");
        assert!(me.loader.is_none_or(|loader| loader.is_absolute()));
    }

    #[test]
    fn a_small_file_of_the_other_order_is_read() {
        let mut bytes = b"\x7fELF\x01\x02\x01".to_vec();
        bytes.resize(52 + 32, 0);
        bytes[17] = 3;
        bytes[19] = 8;
        bytes[31] = 52;
        bytes[43] = 32;
        bytes[45] = 1;
        bytes[55] = 3;
        bytes[59] = 84;
        bytes[71] = 3;
        bytes.extend_from_slice(b"/l\0");
        let found = Elf::read(&mut Cursor::new(bytes)).expect("an executable");
        assert_eq!((found.machine, found.class, found.order), (8, Class::Small, Order::Big));
        assert_eq!(found.loader, Some("/l".into()));
    }

    #[test]
    fn hostile_headers_are_refused_with_the_reason() {
        refused(|bytes| bytes.truncate(10), "cannot be read");
        refused(|bytes| bytes.truncate(63), "cannot be read");
        refused(|bytes| bytes.truncate(100), "cannot be read");
        refused(|bytes| bytes.truncate(125), "cannot be read");
        refused(|bytes| bytes[4] = 3, "neither 32 nor 64");
        refused(|bytes| bytes[5] = 0, "order");
        refused(|bytes| bytes[16] = 1, "object file");
        refused(|bytes| bytes[16] = 4, "core dump");
        refused(|bytes| bytes[16] = 77, "unknown kind");
        refused(|bytes| bytes[54] = 55, "a wrong size");
        refused(|bytes| bytes[56..58].fill(0), "no program headers");
        refused(|bytes| bytes[56..58].fill(0xff), "too many");
        refused(|bytes| bytes[32..40].fill(0xff), "cannot be read");
        refused(|bytes| bytes[72..80].fill(0xff), "cannot be read");
        refused(|bytes| bytes[96..104].fill(0xff), "too long");
        refused(|bytes| bytes[96..104].fill(0), "empty");
        refused(|bytes| *bytes.last_mut().expect("bytes") = b'x', "no end");
    }

    proptest! {
        #[test]
        fn law_no_header_makes_trouble(
            changes in proptest::collection::vec((0..132_usize, any::<u8>()), 0..20),
            end in 0..132_usize,
        ) {
            let mut bytes = elf(62, Some("/lib/ld.so"));
            for (at, byte) in changes {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(end.max(bytes.len() / 2));
            if let Ok(found) = Elf::read(&mut Cursor::new(bytes)) {
                prop_assert!(found.loader.is_none_or(|path| path.as_os_str().len() < 4096));
            }
        }
    }
}
