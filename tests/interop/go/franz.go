package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// franz is franz-go with its defaults: idempotent producer, cooperative-sticky groups.
type franz struct{}

var franzCodecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func (franz) produce(brokers []string, topic, codec string, items []item) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ProducerBatchCompression(franzCodecs[codec]),
		kgo.ProducerLinger(20*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, 0, len(items))
	for _, item := range items {
		records = append(records, &kgo.Record{Topic: topic, Key: item.key, Value: item.value})
	}
	return client.ProduceSync(context.Background(), records...).FirstErr()
}

func (franz) consume(brokers []string, topic string, count int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for seen := 0; seen < count; {
		fetches := client.PollFetches(context.Background())
		if errs := fetches.Errors(); len(errs) > 0 {
			return errs[0].Err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Printf("%d\t%s\t%s\n", record.Partition, record.Key, record.Value)
			seen++
		})
	}
	return nil
}

func (franz) member(ctx context.Context, brokers []string, topic, group string) error {
	held := &assignment{}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.AutoCommitInterval(commitInterval),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			held.add(added[topic])
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, taken map[string][]int32) {
			held.remove(taken[topic])
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				fmt.Println(err)
			}
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, taken map[string][]int32) { held.remove(taken[topic]) }),
	)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(record *kgo.Record) {
			say(map[string]any{"p": record.Partition, "o": record.Offset, "v": string(record.Value)})
		})
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	return nil
}
