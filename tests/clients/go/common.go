// Package common is what the Go clients share: a scenario's line of output and the exit code.
package common

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"time"
)

// Patience is how long anything may take that should take milliseconds.
const Patience = 60 * time.Second

// Start is now: records of the past could be deleted by retention while they are read.
var Start = time.Now().UnixMilli()

var failed bool

// Scenario runs body and prints how it went.
func Scenario(name string, body func() error) {
	if only := os.Getenv("KURING_SCENARIO"); only != "" && only != name {
		return
	}
	if err := guarded(body); err != nil {
		failed = true
		fmt.Printf("FAILED %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok %s\n", name)
}

// Exit ends the program; its status says whether a scenario failed.
func Exit() {
	if failed {
		os.Exit(1)
	}
	os.Exit(0)
}

// Same returns an error when the two values differ.
func Same(wanted, found any, what string) error {
	if !reflect.DeepEqual(wanted, found) {
		return fmt.Errorf("%s: wanted %v, found %v", what, wanted, found)
	}
	return nil
}

// Eventually probes until it holds: Kafka answers an administrator from metadata that may lag behind.
func Eventually(what string, probe func() bool) error {
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if probe() {
			return nil
		}
	}
	return fmt.Errorf("not within %v: %s", Patience, what)
}

// Patient is a context that ends after Patience.
func Patient() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// Sizes is what "sizes" sends, SizesMax the limit that it needs.
var Sizes = []int{0, 1, 1_000_000, 20_000_000}

const SizesMax = 25_000_000

// Sized is a value of that size.
func Sized(size int) []byte {
	return bytes.Repeat([]byte{byte(size % 251)}, size)
}

// Mode is what the program is asked for: "" for all scenarios, "outage", or "member" (GROUP TOPIC).
func Mode() string {
	if len(os.Args) > 2 {
		return os.Args[2]
	}
	return ""
}

// Member starts this program once more, as a member of a group; the function returned kills it.
func Member(group, topic string) func() {
	command := exec.Command(os.Args[0], os.Args[1], "member", group, topic)
	Must(command.Start())
	return func() {
		Must(command.Process.Kill())
		_ = command.Wait()
	}
}

// Received is what a consumer has got in an outage, by offset.
type Received struct {
	mutex  sync.Mutex
	values map[int64]string
}

// Add notes a record; the same offset may come again.
func (r *Received) Add(offset int64, value []byte) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.values == nil {
		r.values = map[int64]string{}
	}
	r.values[offset] = string(value)
}

// Count says how many offsets have come.
func (r *Received) Count() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.values)
}

// Check fails unless the values by offset are 0, 1, 2…; with repeated, a value may stand there again, which is what
// a producer without idempotence does.
func (r *Received) Check(sent int, repeated bool, what string) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	next := 0
	for offset := range int64(len(r.values)) {
		value, ok := r.values[offset]
		if !ok {
			return fmt.Errorf("offset %d was not %s", offset, what)
		}
		var number int
		if _, err := fmt.Sscan(value, &number); err != nil {
			return err
		}
		switch {
		case number == next:
			next++
		case number < next && repeated:
		default:
			return fmt.Errorf("%s at offset %d: %d, wanted %d", what, offset, number, next)
		}
	}
	return Same(sent, next, "records "+what)
}

// Ready tells the run that the load has begun.
func Ready() {
	name := filepath.Join(os.Getenv("KURING_OUTAGE"), os.Getenv("KURING_CLIENT")+".ready")
	Must(os.WriteFile(name, nil, 0o600))
}

// Ends says whether the run has seen enough.
func Ends() bool {
	_, err := os.Stat(filepath.Join(os.Getenv("KURING_OUTAGE"), "stop"))
	return err == nil
}

// Must turns an error into a failed scenario.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}

// Value is Must for calls that also return something.
func Value[T any](value T, err error) T {
	Must(err)
	return value
}

func guarded(body func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%v", reason)
		}
	}()
	return body()
}
