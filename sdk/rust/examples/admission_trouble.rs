//! An admission plugin that misbehaves as its arguments say, for tests of the agent.
//!
//! It speaks the protocol itself, because the SDK cannot misbehave. Every process appends
//! `life PID` to the file of `--record`, and for every check `check PACKAGE`.

use std::fs::OpenOptions;
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use guest_agent_proto::cipd::plugin::admissions_client::AdmissionsClient;
use guest_agent_proto::cipd::plugin::host_client::HostClient;
use guest_agent_proto::cipd::plugin::{
    Admission, ListAdmissionsRequest, ListMetadataRequest, LogRequest, ResolveAdmissionRequest,
};
use guest_agent_proto::rpc;
use serde::Deserialize;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

#[derive(Clone, Default)]
struct Orders {
    record: Option<String>,
    /// Denies with this message; admits when absent.
    deny: Option<String>,
    version: i32,
    never_connect: bool,
    silent: bool,
    /// Answers no check before so many have arrived.
    hold: usize,
    /// Exits with code 7 at this check.
    crash_at: Option<usize>,
    /// Admits without a status, as CIPD's Go library does.
    no_status: bool,
    /// Breaks every rule at the first check, and logs the agent's answers.
    manners: bool,
    /// Does not end when the agent asks for it.
    stay: bool,
}

#[derive(Deserialize)]
struct Handshake {
    port: u16,
    ticket: String,
}

fn main() -> ExitCode {
    let orders = orders();
    record(&orders, &format!("life {}", std::process::id()));
    let mut line = String::new();
    let mut input = std::io::BufReader::new(std::io::stdin());
    if input.read_line(&mut line).is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(handshake) = serde_json::from_str::<Handshake>(&line) else { return ExitCode::FAILURE };
    let stay = orders.stay;
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        let read = input.read_to_end(&mut rest);
        if !stay {
            std::process::exit(if read.is_ok() { 0 } else { 1 });
        }
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    match runtime.block_on(serve(&orders, &handshake)) {
        Ok(code) => code,
        Err(status) => {
            eprintln!("the agent says {:?}: {}", status.code(), status.message());
            if orders.stay || orders.never_connect {
                std::thread::sleep(Duration::from_secs(3600));
            }
            ExitCode::FAILURE
        }
    }
}

async fn serve(orders: &Orders, handshake: &Handshake) -> Result<ExitCode, Status> {
    if orders.never_connect {
        std::future::pending::<()>().await;
    }
    let address = format!("http://127.0.0.1:{}", handshake.port);
    let endpoint = Channel::from_shared(address).map_err(|e| Status::internal(e.to_string()))?;
    let channel = endpoint.connect().await.map_err(|e| Status::internal(e.to_string()))?;
    let mut admissions = AdmissionsClient::new(channel.clone());
    let list =
        ListAdmissionsRequest { protocol_version: orders.version, plugin_version: "t".into() };
    let list = || with_ticket(list.clone(), &handshake.ticket);
    let mut checks = admissions.list_admissions(list()).await?.into_inner();
    let mut held = Vec::new();
    let mut seen = 0;
    while let Some(check) = checks.message().await? {
        seen += 1;
        record(orders, &format!("check {}", check.package));
        if orders.crash_at == Some(seen) {
            eprintln!("told to crash");
            return Ok(ExitCode::from(7));
        }
        if orders.manners && seen == 1 {
            let second = admissions.list_admissions(list()).await.map(|_| ());
            manners(&channel, handshake, &check, second).await?;
        }
        held.push(check);
        if orders.silent || seen < orders.hold {
            continue;
        }
        for check in held.drain(..) {
            let resolve = resolution(orders, check.admission_id);
            let (mut admissions, ticket) = (admissions.clone(), handshake.ticket.clone());
            tokio::spawn(async move {
                let resolved = admissions.resolve_admission(with_ticket(resolve, &ticket)).await;
                if let Err(status) = resolved {
                    eprintln!("cannot answer: {:?} {}", status.code(), status.message());
                }
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All calls that break a rule, one after the other.
async fn manners(
    channel: &Channel,
    handshake: &Handshake,
    check: &Admission,
    second_list: Result<(), Status>,
) -> Result<(), Status> {
    let ticket = handshake.ticket.as_str();
    let mut host = HostClient::new(channel.clone());
    let mut admissions = AdmissionsClient::new(channel.clone());
    let mut said = vec![format!("second list: {}", outcome(&second_list))];
    let line = || LogRequest { severity: "info".into(), message: "not heard".into() };
    let without = host.log(Request::new(line())).await;
    said.push(format!("no ticket: {}", outcome(&without)));
    let wrong = host.log(with_ticket(line(), "AAAA")).await;
    said.push(format!("wrong ticket: {}", outcome(&wrong)));
    let unknown = ResolveAdmissionRequest { admission_id: "nobody's".into(), status: None };
    let unknown = admissions.resolve_admission(with_ticket(unknown, ticket)).await;
    said.push(format!("unknown id: {}", outcome(&unknown)));
    let page = |service_url: &str, page_token: String| ListMetadataRequest {
        service_url: service_url.to_owned(),
        package: check.package.clone(),
        instance: check.instance.clone(),
        keys: Vec::new(),
        page_size: 2,
        page_token,
    };
    let foreign = page("https://elsewhere", String::new());
    let foreign = host.list_metadata(with_ticket(foreign, ticket)).await;
    said.push(format!("foreign service: {}", outcome(&foreign)));
    let (mut token, mut keys, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let request = with_ticket(page(&check.service_url, token), ticket);
        let answer = host.list_metadata(request).await?.into_inner();
        pages += 1;
        keys.extend(answer.metadata.into_iter().map(|entry| entry.key));
        if answer.next_page_token.is_empty() {
            break;
        }
        token = answer.next_page_token;
    }
    said.push(format!("metadata: {} entries on {pages} pages: {}", keys.len(), keys.join(" ")));
    // The first answer wins: the denial after it changes nothing.
    let ok = rpc::Status::default();
    let no = rpc::Status { code: Code::PermissionDenied.into(), ..rpc::Status::default() };
    for status in [ok, no] {
        let admission_id = check.admission_id.clone();
        let resolve = ResolveAdmissionRequest { admission_id, status: Some(status) };
        let resolved = admissions.resolve_admission(with_ticket(resolve, ticket)).await;
        said.push(format!("answer: {}", outcome(&resolved)));
    }
    for severity in ["debug", "info", "warning", "error", "shrill"] {
        let message = format!("as {severity}\nforged line");
        let line = LogRequest { severity: severity.into(), message };
        host.log(with_ticket(line, ticket)).await?;
    }
    for message in said {
        let line = LogRequest { severity: "info".into(), message };
        host.log(with_ticket(line, ticket)).await?;
    }
    Ok(())
}

fn resolution(orders: &Orders, admission_id: String) -> ResolveAdmissionRequest {
    let status = match &orders.deny {
        None => rpc::Status::default(),
        Some(message) => {
            let (code, message) = (Code::PermissionDenied.into(), message.clone());
            rpc::Status { code, message, details: Vec::new() }
        }
    };
    ResolveAdmissionRequest { admission_id, status: (!orders.no_status).then_some(status) }
}

fn outcome<T>(result: &Result<T, Status>) -> String {
    match result {
        Ok(_) => "OK".to_owned(),
        Err(status) => format!("{:?}", status.code()),
    }
}

fn with_ticket<T>(message: T, ticket: &str) -> Request<T> {
    let mut request = Request::new(message);
    let ticket = ticket.parse().expect("a ticket is ASCII");
    request.metadata_mut().insert("x-plugin-ticket", ticket);
    request
}

fn record(orders: &Orders, line: &str) {
    if let Some(path) = &orders.record {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.expect("the record can be written");
    }
}

fn orders() -> Orders {
    let mut orders = Orders { version: 1, ..Orders::default() };
    for argument in std::env::args().skip(1) {
        let (flag, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let number = || value.parse().expect("a number");
        match flag {
            "--record" => orders.record = Some(value.to_owned()),
            "--deny" => orders.deny = Some(value.to_owned()),
            "--version" => orders.version = value.parse().expect("a number"),
            "--never-connect" => orders.never_connect = true,
            "--silent" => orders.silent = true,
            "--hold" => orders.hold = number(),
            "--crash-at" => orders.crash_at = Some(number()),
            "--no-status" => orders.no_status = true,
            "--manners" => orders.manners = true,
            "--stay" => orders.stay = true,
            other => panic!("unknown flag {other}"),
        }
    }
    orders
}
