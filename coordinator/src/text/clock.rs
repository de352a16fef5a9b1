//! The date as chat templates ask for it, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `now` by the directives of C's `strftime`, as far as they are numbers or English names; others
/// stay as they are. A minus before a number's letter leaves out the zeros before it.
pub(crate) fn strftime(format: &str, now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut directive = rest.next();
        let is_bare = directive == Some('-');
        if is_bare {
            directive = rest.next();
        }
        let number = |value: u64, width: usize| {
            let width = if is_bare { 0 } else { width };
            format!("{value:0width$}")
        };
        text += &match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('e') if !is_bare => format!("{day:2}"),
            Some('e') => day.to_string(),
            Some('j') => number(day_of_year((year, month, day)), 3),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => number(minute, 2),
            Some('S') => number(second % 60, 2),
            Some('F') => strftime("%Y-%m-%d", now),
            Some('D') => strftime("%m/%d/%y", now),
            Some('T') => strftime("%H:%M:%S", now),
            Some('R') => strftime("%H:%M", now),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') | None => "%".to_owned(),
            Some(other) => format!("%{}{other}", if is_bare { "-" } else { "" }),
        };
    }
    text
}

/// Of a day, counted from 1.
fn day_of_year((year, month, day): (u64, u64, u64)) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    BEFORE[month as usize - 1] + day + u64::from(is_leap && month > 2)
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar. Years are
/// counted from March, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leaps = day_of_era / 1_460 + day_of_era / 146_096;
    let year_of_era = (day_of_era + day_of_era / 36_524 - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates() {
        let check = |seconds: u64, format: &str, want: &str| {
            assert_eq!(strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)), want);
        };
        check(0, "%Y-%m-%d %H:%M:%S", "1970-01-01 00:00:00");
        check(951_782_400, "%d %b %Y", "29 Feb 2000");
        check(1_735_689_599, "%A %d %B %Y, %H:%M:%S", "Tuesday 31 December 2024, 23:59:59");
        check(4_107_542_400, "%a %Y-%m-%d %% %Q %", "Mon 2100-03-01 % %Q %");
        check(951_782_400 + 86_400, "%j %y %e %-d %-m %p %I", "061 00  1 1 3 AM 12");
        check(
            1_735_689_599,
            "%j %y %e %-d %p %-I %F %T %D %R",
            "366 24 31 31 PM 11 2024-12-31 \
            23:59:59 12/31/24 23:59",
        );
        check(4_107_542_400, "%j %-Q", "060 %-Q");
    }
}
