package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	floodKeys      = 32
	maxOutstanding = 2000
	metadataMinAge = 200 * time.Millisecond
)

// tally is what became of the records of a flood: see tests/interop/flood.py.
type tally struct {
	sync.Mutex
	room           chan struct{}
	stopped        atomic.Bool
	rounds         int
	refused        map[string]map[int]string
	acknowledgedAt map[string]time.Time
	partitions     map[int32]bool
	pause          time.Duration
}

func newTally() *tally {
	t := &tally{
		room:           make(chan struct{}, maxOutstanding),
		refused:        map[string]map[int]string{},
		acknowledgedAt: map[string]time.Time{},
		partitions:     map[int32]bool{},
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		t.stopped.Store(true)
	}()
	return t
}

func (t *tally) settle(key string, round int, partition int32, err error) {
	<-t.room
	now := time.Now()
	t.Lock()
	defer t.Unlock()
	if err != nil {
		if t.refused[key] == nil {
			t.refused[key] = map[int]string{}
		}
		t.refused[key][round] = err.Error()
		return
	}
	if before, known := t.acknowledgedAt[key]; known {
		t.pause = max(t.pause, now.Sub(before))
	}
	t.acknowledgedAt[key] = now
	if !t.partitions[partition] {
		t.partitions[partition] = true
		fmt.Println("partition", partition)
	}
}

// run sends round after round until standard input ends.
func (t *tally) run(mode string, send func(key string, round int)) {
	for !t.stopped.Load() {
		for number := range floodKeys {
			t.room <- struct{}{}
			send(mode+"-"+strconv.Itoa(number), t.rounds)
		}
		t.rounds++
	}
}

func (t *tally) report() error {
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"rounds": t.rounds, "refused": t.refused, "pause_ms": t.pause.Milliseconds(),
	})
}

func (franz) flood(brokers []string, topic, mode string) error {
	// By default it asks for metadata every five seconds at most, and pauses as long at each split.
	options := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic), kgo.MetadataMinAge(metadataMinAge)}
	if mode != "idempotent" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	t := newTally()
	t.run(mode, func(key string, round int) {
		record := &kgo.Record{Key: []byte(key), Value: []byte(strconv.Itoa(round))}
		client.Produce(context.Background(), record, func(to *kgo.Record, err error) { t.settle(key, round, to.Partition, err) })
	})
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	client.Close()
	return t.report()
}

type sent struct {
	key   string
	round int
}

func (saramaLibrary) flood(brokers []string, topic, mode string) error {
	config := saramaConfig()
	config.Producer.Return.Errors = true
	if mode != "idempotent" {
		config.Producer.Idempotent = false
		config.Net.MaxOpenRequests = sarama.NewConfig().Net.MaxOpenRequests
	}
	producer, err := sarama.NewAsyncProducer(brokers, config)
	if err != nil {
		return err
	}
	t := newTally()
	var settling sync.WaitGroup
	settling.Add(2)
	go func() {
		defer settling.Done()
		for message := range producer.Successes() {
			of := message.Metadata.(sent)
			t.settle(of.key, of.round, message.Partition, nil)
		}
	}()
	go func() {
		defer settling.Done()
		for failed := range producer.Errors() {
			of := failed.Msg.Metadata.(sent)
			t.settle(of.key, of.round, failed.Msg.Partition, failed.Err)
		}
	}()
	t.run(mode, func(key string, round int) {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(strconv.Itoa(round)),
			Metadata: sent{key, round},
		}
	})
	producer.AsyncClose()
	settling.Wait()
	return t.report()
}
