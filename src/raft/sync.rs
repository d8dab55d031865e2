//! The channels that openraft asks its runtime for, on tokio's `sync`: it needs no runtime and its wakers
//! are the executor's own.

use std::future::Future;

use openraft::type_config::async_runtime as rt;
use tokio::sync;

/// A bounded queue.
pub struct Mpsc;

pub struct MpscSender<T>(sync::mpsc::Sender<T>);
pub struct MpscReceiver<T>(sync::mpsc::Receiver<T>);
pub struct MpscWeakSender<T>(sync::mpsc::WeakSender<T>);

impl<T> Clone for MpscSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Clone for MpscWeakSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl rt::Mpsc for Mpsc {
    type Sender<T: openraft::OptionalSend> = MpscSender<T>;
    type Receiver<T: openraft::OptionalSend> = MpscReceiver<T>;
    type WeakSender<T: openraft::OptionalSend> = MpscWeakSender<T>;

    fn channel<T: openraft::OptionalSend>(buffer: usize) -> (MpscSender<T>, MpscReceiver<T>) {
        let (sender, receiver) = sync::mpsc::channel(buffer);
        (MpscSender(sender), MpscReceiver(receiver))
    }
}

impl<T: openraft::OptionalSend> rt::MpscSender<Mpsc, T> for MpscSender<T> {
    async fn send(&self, message: T) -> Result<(), rt::SendError<T>> {
        self.0.send(message).await.map_err(|refused| rt::SendError(refused.0))
    }

    fn downgrade(&self) -> MpscWeakSender<T> {
        MpscWeakSender(self.0.downgrade())
    }
}

impl<T: openraft::OptionalSend> rt::MpscReceiver<T> for MpscReceiver<T> {
    fn recv(&mut self) -> impl Future<Output = Option<T>> {
        self.0.recv()
    }

    fn try_recv(&mut self) -> Result<T, rt::TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            sync::mpsc::error::TryRecvError::Empty => rt::TryRecvError::Empty,
            sync::mpsc::error::TryRecvError::Disconnected => rt::TryRecvError::Disconnected,
        })
    }
}

impl<T: openraft::OptionalSend> rt::MpscWeakSender<Mpsc, T> for MpscWeakSender<T> {
    fn upgrade(&self) -> Option<MpscSender<T>> {
        self.0.upgrade().map(MpscSender)
    }
}

/// One value, once.
pub struct Oneshot;

pub struct OneshotSender<T>(sync::oneshot::Sender<T>);

impl rt::Oneshot for Oneshot {
    type Sender<T: openraft::OptionalSend> = OneshotSender<T>;
    type Receiver<T: openraft::OptionalSend> = sync::oneshot::Receiver<T>;
    type ReceiverError = sync::oneshot::error::RecvError;

    fn channel<T: openraft::OptionalSend>() -> (OneshotSender<T>, sync::oneshot::Receiver<T>) {
        let (sender, receiver) = sync::oneshot::channel();
        (OneshotSender(sender), receiver)
    }
}

impl<T: openraft::OptionalSend> rt::OneshotSender<T> for OneshotSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

/// The latest of a row of values.
pub struct Watch;

pub struct WatchSender<T>(sync::watch::Sender<T>);
pub struct WatchReceiver<T>(sync::watch::Receiver<T>);

impl<T> Clone for WatchSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl rt::Watch for Watch {
    type Sender<T: openraft::OptionalSend + openraft::OptionalSync> = WatchSender<T>;
    type Receiver<T: openraft::OptionalSend + openraft::OptionalSync> = WatchReceiver<T>;
    type Ref<'a, T: openraft::OptionalSend + 'a> = sync::watch::Ref<'a, T>;

    fn channel<T: openraft::OptionalSend + openraft::OptionalSync>(
        first: T,
    ) -> (WatchSender<T>, WatchReceiver<T>) {
        let (sender, receiver) = sync::watch::channel(first);
        (WatchSender(sender), WatchReceiver(receiver))
    }
}

impl<T: openraft::OptionalSend + openraft::OptionalSync> rt::WatchSender<Watch, T> for WatchSender<T> {
    fn send(&self, value: T) -> Result<(), rt::watch::SendError<T>> {
        self.0.send(value).map_err(|refused| rt::watch::SendError(refused.0))
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        self.0.send_if_modified(modify)
    }

    fn borrow_watched(&self) -> sync::watch::Ref<'_, T> {
        self.0.borrow()
    }

    fn subscribe(&self) -> WatchReceiver<T> {
        WatchReceiver(self.0.subscribe())
    }
}

impl<T: openraft::OptionalSend + openraft::OptionalSync> rt::WatchReceiver<Watch, T> for WatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), rt::RecvError> {
        self.0.changed().await.map_err(|_| rt::RecvError(()))
    }

    fn borrow_watched(&self) -> sync::watch::Ref<'_, T> {
        self.0.borrow()
    }

    fn borrow_and_update(&mut self) -> sync::watch::Ref<'_, T> {
        self.0.borrow_and_update()
    }
}

/// A lock that is waited for without blocking the thread.
pub struct Mutex<T>(sync::Mutex<T>);

impl<T: openraft::OptionalSend + 'static> rt::Mutex<T> for Mutex<T> {
    type Guard<'a> = sync::MutexGuard<'a, T>;

    fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    fn lock(&self) -> impl Future<Output = sync::MutexGuard<'_, T>> {
        self.0.lock()
    }
}
