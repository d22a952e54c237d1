//! The committed code under `src/gen/` is what the `.proto` files generate.

use std::path::{Path, PathBuf};

use codegen::{compile, generate_into, generate_records_into};

const PROTOS: [&str; 8] = [
    "plugin_comm.proto",
    "agent_controlplane.proto",
    "agent_communication.proto",
    "local.proto",
    "host.proto",
    "record.proto",
    "cipd_plugin.proto",
    "fleet.proto",
];

/// Code generation with `protox` in place of `protoc`.
mod codegen {
    use std::path::Path;

    pub(crate) fn compile(protos: &[&str], include: &Path) -> protox::Compiler {
        let mut compiler = protox::Compiler::new([include]).expect("the include folder exists");
        compiler.include_source_info(true).include_imports(true);
        for proto in protos {
            compiler.open_file(proto).expect("a valid .proto file");
        }
        compiler
    }

    /// Code of the one package that the files declare.
    pub(crate) fn generate_records_into(out: &Path, compiler: &protox::Compiler) {
        tonic_prost_build::configure()
            .out_dir(out)
            // Equal records have equal bytes.
            .btree_map(".")
            .compile_fds(compiler.file_descriptor_set())
            .expect("generates");
    }

    pub(crate) fn generate_into(out: &Path, compiler: &protox::Compiler) {
        let descriptors = out.join("descriptors.bin");
        std::fs::write(&descriptors, without_comments(compiler)).expect("writes descriptors");
        tonic_prost_build::configure()
            .out_dir(out)
            // Equal reports have equal bytes, whatever the order in which a hash map has its labels.
            .btree_map(".guest_agent.fleet.v1")
            .compile_fds(compiler.file_descriptor_set())
            .expect("generates");
    }

    fn without_comments(compiler: &protox::Compiler) -> Vec<u8> {
        use prost::Message;
        let mut set = compiler.file_descriptor_set();
        for file in &mut set.file {
            file.source_code_info = None;
        }
        set.encode_to_vec()
    }
}

#[test]
fn committed_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("src/gen");
    let compiler = compile(&PROTOS, &root.join("proto"));

    let fresh = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("gen");
    std::fs::create_dir_all(&fresh).expect("creates the folder for fresh code");
    generate_into(&fresh, &compiler);

    for entry in std::fs::read_dir(&fresh).expect("lists fresh code") {
        let entry = entry.expect("an entry");
        check(&entry.path(), &committed.join(entry.file_name()));
    }
}

/// The records of a fleet are generated where they are used: what is done with them is there, too.
#[test]
fn committed_records_of_a_fleet_match_their_proto_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fresh = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fleet-records");
    std::fs::create_dir_all(&fresh).expect("creates the folder for fresh code");
    generate_records_into(&fresh, &compile(&["fleet_record.proto"], &root.join("proto")));
    let committed = root.join("../fleet/ledger/src/records/generated.rs");
    check(&fresh.join("guest_agent.fleet.record.v1.rs"), &committed);
}

fn check(fresh: &Path, committed: &Path) {
    let new = std::fs::read(fresh).expect("reads fresh code");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(committed, new).expect("writes committed code");
    } else if std::fs::read(committed).unwrap_or_default() != new {
        panic!(
            "{} is not what the .proto files generate; run this test with UPDATE_GENERATED=1",
            committed.display()
        );
    }
}
