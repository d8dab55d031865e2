// Package common is what the Go clients share: a scenario's line of output and the exit code.
package common

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"time"
)

// Patience is how long anything may take that should take milliseconds.
const Patience = 30 * time.Second

// Start is now: records of the past could be deleted by retention while they are read.
var Start = time.Now().UnixMilli()

var failed bool

// Scenario runs body and prints how it went.
func Scenario(name string, body func() error) {
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
