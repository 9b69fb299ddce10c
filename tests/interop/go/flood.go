package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
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
	pausesMs       []int64
}

func newTally() *tally {
	t := &tally{
		room:           make(chan struct{}, maxOutstanding),
		refused:        map[string]map[int]string{},
		acknowledgedAt: map[string]time.Time{},
		partitions:     map[int32]bool{},
		pausesMs:       []int64{0},
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			t.Lock()
			t.pausesMs = append(t.pausesMs, 0)
			t.Unlock()
		}
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
		last := len(t.pausesMs) - 1
		t.pausesMs[last] = max(t.pausesMs[last], now.Sub(before).Milliseconds())
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
		"rounds": t.rounds, "refused": t.refused, "pauses_ms": t.pausesMs,
	})
}

func (franz) flood(brokers []string, topic, mode string) error {
	options := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic)}
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
