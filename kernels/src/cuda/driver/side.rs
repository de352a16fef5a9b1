//! A second stream, for what must not hold up the first.

use cudarc::driver::sys;

use super::handles::{Event, Stream, Turn};
use super::{Driver, library};
use crate::cuda::device::{Address, Fault};

/// A stream beside a device's own, whose blocks go first: a peer's device waits for them, and its
/// multiprocessors compute nothing meanwhile.
pub(crate) struct SideStream(Stream);

impl SideStream {
    pub(crate) fn new(driver: &Driver) -> Result<Self, Fault> {
        driver.bind("cuStreamCreateWithPriority")?;
        Stream::new(Turn::First).map(Self)
    }

    /// As libraries take it; lives as long as `self`.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.0.0
    }

    /// What comes next waits for all that the device's own stream was given so far.
    pub(crate) fn follow_all(&self, driver: &Driver) -> Result<(), Fault> {
        driver.bind("cuStreamWaitEvent")?;
        let event = Event::new(false)?;
        event.record(&driver.parts.stream)?;
        self.follow(driver, &event)
    }

    /// What comes next waits until the device has come to `event`.
    pub(crate) fn follow(&self, driver: &Driver, event: &Event) -> Result<(), Fault> {
        driver.bind("cuStreamWaitEvent")?;
        // SAFETY: stream and event live, and are of the same context; the driver keeps what it
        // needs of the event when it is destroyed.
        let waits = unsafe { (library::driver()?.cuStreamWaitEvent)(self.raw(), event.raw(), 0) };
        library::check("cuStreamWaitEvent", waits)
    }

    /// Copies to the host behind what this stream was given so far, among which nothing may wait
    /// for a peer.
    pub(crate) fn read(&self, driver: &Driver, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        driver.read_on(&self.0, from, to)
    }

    /// A point behind everything that this stream was given so far.
    pub(crate) fn mark(&self, driver: &Driver) -> Result<Event, Fault> {
        driver.bind("cuEventRecord")?;
        let event = Event::new(false)?;
        event.record(&self.0)?;
        Ok(event)
    }
}
