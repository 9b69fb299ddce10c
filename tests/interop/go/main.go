// Command interop runs one operation of a Go client library against a cluster.
//
//	interop LIBRARY produce BOOTSTRAP TOPIC CODEC    "key\tvalue" lines from standard input, acks=all
//	interop LIBRARY consume BOOTSTRAP TOPIC COUNT    "partition\tkey\tvalue" lines, from the start, without a group
//	interop LIBRARY flood   BOOTSTRAP TOPIC MODE     full speed until standard input ends: see tests/interop/flood.py
//	interop LIBRARY member  BOOTSTRAP TOPIC GROUP    JSON lines: {"assigned": [..]} and {"p":, "o":, "v":}; SIGTERM leaves
//	interop LIBRARY slow    BOOTSTRAP TOPIC GROUPS   members that process as told: see tests/interop/slow_members.py
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	sessionTimeout    = 6 * time.Second
	heartbeatInterval = 500 * time.Millisecond
	commitInterval    = 200 * time.Millisecond
	partitions        = 3 // of the topics that consume reads
)

type item struct{ key, value []byte }

type library interface {
	produce(brokers []string, topic, codec string, items []item) error
	consume(brokers []string, topic string, count int) error
	flood(brokers []string, topic, mode string) error
	member(ctx context.Context, brokers []string, topic, group string) error
	slow(ctx context.Context, brokers []string, member slowMember, p *processing) error
}

var libraries = map[string]library{"franz-go": franz{}, "sarama": saramaLibrary{}}

var output sync.Mutex

func say(fields map[string]any) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Printf("%s\n", line)
}

// assignment collects what a member holds: cooperative assignors say what is added and what is taken.
type assignment struct {
	held   []int32
	member *int // its number, where a process has several
}

func (a *assignment) add(partitions []int32) {
	a.held = append(a.held, partitions...)
	a.say()
}

func (a *assignment) remove(partitions []int32) {
	a.held = slices.DeleteFunc(a.held, func(p int32) bool { return slices.Contains(partitions, p) })
	a.say()
}

func (a *assignment) say() {
	held := append([]int32{}, a.held...) // never nil, which JSON would call null
	slices.Sort(held)
	fields := map[string]any{"assigned": held}
	if a.member != nil {
		fields["m"] = *a.member
	}
	say(fields)
}

func readItems() ([]item, error) {
	var items []item
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		key, value, _ := bytes.Cut(bytes.Clone(lines.Bytes()), []byte("\t"))
		items = append(items, item{key, value})
	}
	return items, lines.Err()
}

func run(arguments []string) error {
	if len(arguments) != 5 {
		return fmt.Errorf("want LIBRARY OPERATION BOOTSTRAP TOPIC ARGUMENT")
	}
	chosen, known := libraries[arguments[0]]
	if !known {
		return fmt.Errorf("no such library: %s", arguments[0])
	}
	brokers, topic, argument := strings.Split(arguments[2], ","), arguments[3], arguments[4]
	switch arguments[1] {
	case "produce":
		items, err := readItems()
		if err != nil {
			return err
		}
		return chosen.produce(brokers, topic, argument, items)
	case "consume":
		count, err := strconv.Atoi(argument)
		if err != nil {
			return err
		}
		return chosen.consume(brokers, topic, count)
	case "flood":
		return chosen.flood(brokers, topic, argument)
	case "slow":
		return runSlow(chosen, brokers, topic, argument)
	case "member":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		return chosen.member(ctx, brokers, topic, argument)
	}
	return fmt.Errorf("no such operation: %s", arguments[1])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
