//! Whether this machine's clock goes as others' do: certificates, logs and traces depend on it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Check;

/// Traces of two processes no longer fit.
const SKEW_SEEN: f64 = 0.5;
/// Certificates and keys are taken for expired.
const SKEW_HARMS: f64 = 30.0;
/// What is further away tells no time that is worth a wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// An answer to a question without a body has no longer head.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Judges a clock of `whom` that showed `theirs` at some time between `asked` and `heard`, and
/// tells no more than `grain` seconds.
pub(crate) fn judge(whom: &str, theirs: f64, (asked, heard): (f64, f64), grain: f64) -> Check {
    let check = format!("clock {whom}");
    // How far it is, at least.
    let early = asked - (theirs + grain);
    let late = theirs - heard;
    let skew = early.max(late).max(0.0);
    let found = match skew {
        0.0 => "as this machine's".to_owned(),
        _ if early > late => format!("{skew:.1} s behind this machine's"),
        _ => format!("{skew:.1} s before this machine's"),
    };
    let next = "have both follow the same time server (chrony, systemd-timesyncd)";
    match skew {
        skew if skew >= SKEW_HARMS => Check::fail(&check, found, next),
        skew if skew >= SKEW_SEEN => Check::warn(&check, found, next),
        _ => Check::ok(&check, found),
    }
}

/// Looks at the clock of the HTTP server at `host:port`, which dates its answers to a second.
pub(crate) async fn look(whom: &str, host: &str) -> Check {
    let asked = now();
    let late = |_| Err(std::io::ErrorKind::TimedOut.into());
    match timeout(PATIENCE, date_of(host)).await.unwrap_or_else(late) {
        Ok(Some(theirs)) => judge(whom, theirs, (asked, now()), 1.0),
        Ok(None) => {
            Check::warn(&format!("clock {whom}"), "it does not date its answers", "compare by hand")
        }
        Err(error) => {
            let next = "see what the check of its health says";
            Check::warn(&format!("clock {whom}"), format!("{host}: {error}"), next)
        }
    }
}

async fn date_of(host: &str) -> std::io::Result<Option<f64>> {
    let mut stream = TcpStream::connect(host).await?;
    let asked = format!("GET /version HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(HEAD_BYTES_MAX).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| parse(value.trim())).flatten()
    };
    Ok(answer.lines().take_while(|line| !line.is_empty()).find_map(header))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, the form that HTTP has.
fn parse(date: &str) -> Option<f64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<_> = date.split([' ', ':']).collect();
    let [_, day, month, year, hours, minutes, seconds, "GMT"] = words[..] else { return None };
    let month = MONTHS.find(month).filter(|at| month.len() == 3 && at % 3 == 0)? as i64 / 3 + 1;
    let number = |word: &str| word.parse::<u32>().ok().map(i64::from);
    let (day, year) = (number(day)?, number(year).filter(|year| (1970..=9999).contains(year))?);
    // Years begin in March, so that a leap day is their last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let seconds = (number(hours)? * 60 + number(minutes)?) * 60 + number(seconds)?;
    Some(Duration::from_secs(u64::try_from(days * 86_400 + seconds).ok()?).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn dates_of_http() {
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777.0));
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0.0));
        assert_eq!(parse("Thu, 29 Feb 2024 12:00:00 GMT"), Some(1_709_208_000.0));
        for wrong in ["", "now", "Sun, 06 anF 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn clocks_are_judged_by_what_is_sure() {
        let check = |theirs, want, found: &str| {
            let check = judge("etcd", theirs, (100.0, 102.0), 1.0);
            assert_eq!((check.state, check.found.as_str()), (want, found));
        };
        check(101.0, State::Ok, "as this machine's");
        check(99.5, State::Ok, "as this machine's");
        check(104.0, State::Warn, "2.0 s before this machine's");
        check(60.0, State::Fail, "39.0 s behind this machine's");
    }
}
