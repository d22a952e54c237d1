//! The tests of what `guest-agent new --lang rust` makes. The program itself is the example `new_project`.

#[expect(dead_code, reason = "nobody calls main here")]
#[path = "../../../src/scaffold/templates/rust/main.rs.in"]
mod new_project;
