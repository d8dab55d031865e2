//! SIGTERM, SIGINT and SIGHUP: blocked in every thread, waited for by one. No handler runs code in the
//! middle of another thread's.
//!
//! Never here: what stopping means.

use std::io;
use std::mem::MaybeUninit;

use crate::base::fatal;

/// Those that ask for an end. The JVM, and so Kafka, takes SIGHUP for one too.
const STOPPING: [(libc::c_int, &str); 3] =
    [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")];

/// Blocks the stopping signals for this thread and all that it starts: the first thing in `main`. A SIGHUP
/// that is ignored already (`nohup`) stays ignored. Also ignores SIGPIPE: a write to a closed connection is
/// an error, not the end.
pub fn block() -> io::Result<()> {
    // SAFETY: setting a disposition to "ignore" installs no code.
    if unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    let set = stopping_set()?;
    // SAFETY: `set` is initialised; the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Calls `callback` with the signal's name on a thread of its own at the first stopping signal. It must
/// return soon: the second signal, which ends the process at once with 128 and its number, is waited for
/// after it. Fails when [`block`] was not called before.
pub fn on_stop(callback: impl FnOnce(&'static str) + Send + 'static) -> io::Result<()> {
    let set = stopping_set()?;
    if !is_blocked(libc::SIGTERM)? {
        return Err(io::Error::other("signals must be blocked before a thread can wait for them"));
    }
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let (_, name) = wait(&set);
        tracing::info!("{name}: stopping; another one ends the process at once");
        callback(name);
        let (number, name) = wait(&set);
        tracing::warn!("a second signal, {name}: ending at once");
        std::process::exit(128 + number);
    })?;
    Ok(())
}

fn stopping_set() -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set; all numbers are valid signals.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for (number, _) in STOPPING {
        if !is_ignored(number)? {
            // SAFETY: `set` is initialised.
            unsafe { libc::sigaddset(&mut set, number) };
        }
    }
    Ok(set)
}

fn is_ignored(number: libc::c_int) -> io::Result<bool> {
    let mut current = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action the call only writes the current one to `current`.
    let (result, current) = unsafe {
        let result = libc::sigaction(number, std::ptr::null(), current.as_mut_ptr());
        (result, current.assume_init())
    };
    if result == 0 { Ok(current.sa_sigaction == libc::SIG_IGN) } else { Err(io::Error::last_os_error()) }
}

fn is_blocked(number: libc::c_int) -> io::Result<bool> {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: with no new mask the call only writes the current one to `mask`.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) } {
        // SAFETY: the call above has written the mask; `number` is a valid signal.
        0 => Ok(unsafe { libc::sigismember(mask.as_ptr(), number) } == 1),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn wait(set: &libc::sigset_t) -> (libc::c_int, &'static str) {
    loop {
        let mut number = 0;
        // SAFETY: both point to what the call expects and outlive it.
        let error = unsafe { libc::sigwait(set, &mut number) };
        match STOPPING.iter().find(|(known, _)| *known == number) {
            Some(known) if error == 0 => return *known,
            _ if error == libc::EINTR => {}
            _ => fatal(format_args!("sigwait: error {error}, signal {number}")),
        }
    }
}
