//! `limit`: limits of a plugin over the limits of its orders.

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{Act, ActRequest, Limits};

use super::act::perform;
use super::context::Context;
use super::failure::Failure;
use super::follow::Goal;
use super::waiting::OnRequest;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent limit metrics --memory 96M --reason backfill
  guest-agent limit metrics --cpu 50 --tasks 200
  guest-agent limit metrics --reset")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    #[command(flatten)]
    limits: Which,
    /// Why, for those who look later
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    waiting: OnRequest,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Which {
    /// Memory of all its processes, in bytes or with K, M, G or T
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// CPU time of all its processes, in percent of one core
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    cpu: Option<u32>,
    /// Most processes and threads
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    tasks: Option<u64>,
    /// The limits of orders count again
    #[arg(long, conflicts_with_all = ["memory", "cpu", "tasks"])]
    reset: bool,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let Flags { name, limits, reason, waiting } = flags;
    let Which { memory: memory_bytes, cpu: cpu_percent, tasks, reset } = limits;
    let request = ActRequest {
        name: name.to_string(),
        act: Act::Limit.into(),
        limits: (!reset).then_some(Limits { memory_bytes, cpu_percent, tasks }),
        reason,
        ..ActRequest::default()
    };
    perform(request, None, waiting.timeout(), Goal::Settled, context).await
}

/// A size as `systemd` writes it: the letters are powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let unit = |letter: char| match letter.to_ascii_uppercase() {
        'K' => Some(10),
        'M' => Some(20),
        'G' => Some(30),
        'T' => Some(40),
        _ => None,
    };
    let bare = text.strip_suffix("iB").unwrap_or(text);
    let power = bare.chars().last().and_then(unit);
    let digits =
        if power.is_some() { bare.get(..bare.len() - 1).unwrap_or_default() } else { bare };
    let bytes =
        digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << power.unwrap_or(0)));
    bytes.ok_or_else(|| "write a size such as 96M, or a number of bytes".to_owned())
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse();
    let number = number.ok().filter(|percent| *percent > 0);
    number.ok_or_else(|| "write a percentage of one core, such as 50".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_letters_of_systemd_and_percentages_may_have_their_sign() {
        for (text, bytes) in
            [("96M", 96 << 20), ("1g", 1 << 30), ("2T", 2 << 40), ("512KiB", 512 << 10), ("7", 7)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "iB", "-1M", "1.5G", "96MB", "1é", "99999999T"] {
            size(text).expect_err(text);
        }
        assert_eq!((percent("50"), percent("150%")), (Ok(50), Ok(150)));
        for text in ["", "%", "0", "0%", "-1", "5000000000"] {
            percent(text).expect_err(text);
        }
    }
}
