package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const metadataMaxAge = time.Second

// processing is what slow members process: see tests/interop/slow_members.py.
type processing struct {
	sync.Mutex
	ended map[string]chan struct{}
}

func (p *processing) end(of string) chan struct{} {
	p.Lock()
	defer p.Unlock()
	if p.ended[of] == nil {
		p.ended[of] = make(chan struct{}, 1)
	}
	return p.ended[of]
}

// process returns when the record is processed: whether it is, or the process ends.
func (p *processing) process(ctx context.Context, member int, partition int32, key, value []byte) bool {
	say(map[string]any{"m": member, "p": partition, "k": string(key), "n": jsonNumber(value)})
	select {
	case <-p.end(fmt.Sprint(member, " ", partition)):
		return true
	case <-ctx.Done():
		return false
	}
}

type jsonNumber []byte

func (n jsonNumber) MarshalJSON() ([]byte, error) { return n, nil }

type slowMember struct {
	number              int
	topic, group, reset string
}

// runSlow runs a member for each "group:reset" until standard input ends.
func runSlow(chosen library, brokers []string, topic, groups string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	p := &processing{ended: map[string]chan struct{}{}}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			p.end(lines.Text()) <- struct{}{}
		}
		stop()
	}()
	results := make(chan error)
	members := strings.Split(groups, ",")
	for number, text := range members {
		group, reset, _ := strings.Cut(text, ":")
		go func() { results <- chosen.slow(ctx, brokers, slowMember{number, topic, group, reset}, p) }()
	}
	var failed error
	for range members {
		failed = errors.Join(failed, <-results)
	}
	return failed
}

// slow commits what earlier polls returned, franz-go's default.
func (franz) slow(ctx context.Context, brokers []string, member slowMember, p *processing) error {
	held := &assignment{member: &member.number}
	begin := kgo.NewOffset().AtStart()
	if member.reset == "latest" {
		begin = kgo.NewOffset().AtEnd()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(member.topic),
		kgo.ConsumerGroup(member.group),
		kgo.ConsumeResetOffset(begin),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.AutoCommitInterval(commitInterval),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.MetadataMinAge(metadataMaxAge/4),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			held.add(added[member.topic])
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, taken map[string][]int32) {
			held.remove(taken[member.topic])
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
			held.remove(taken[member.topic])
		}),
	)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		client.PollRecords(ctx, 1).EachRecord(func(record *kgo.Record) {
			p.process(ctx, member.number, record.Partition, record.Key, record.Value)
		})
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	return nil
}

// slowHandler is given each partition in a goroutine of its own.
type slowHandler struct {
	member  slowMember
	process *processing
	stopped context.Context
}

func (h *slowHandler) Setup(session sarama.ConsumerGroupSession) error {
	(&assignment{member: &h.member.number}).add(session.Claims()[h.member.topic])
	return nil
}

func (h *slowHandler) Cleanup(sarama.ConsumerGroupSession) error {
	(&assignment{member: &h.member.number}).say()
	return nil
}

func (h *slowHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case message, open := <-claim.Messages():
			// Both may be ready.
			if !open || session.Context().Err() != nil {
				return nil
			}
			if h.process.process(h.stopped, h.member.number, message.Partition, message.Key, message.Value) {
				session.MarkMessage(message, "")
			}
		}
	}
}

// slow marks what is processed; sarama commits what is marked.
func (saramaLibrary) slow(ctx context.Context, brokers []string, member slowMember, p *processing) error {
	config := saramaConfig()
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Metadata.RefreshFrequency = metadataMaxAge
	if member.reset == "latest" {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	group, err := sarama.NewConsumerGroup(brokers, member.group, config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := group.Consume(ctx, []string{member.topic}, &slowHandler{member, p, ctx})
		if err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return errors.Join(err, group.Close())
		}
	}
	return group.Close()
}
