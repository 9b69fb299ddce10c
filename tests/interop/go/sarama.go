package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

type saramaLibrary struct{}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_0_0_0
	config.Producer.Partitioner = sarama.NewMurmur2Partitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = commitInterval
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	return config
}

func (saramaLibrary) produce(brokers []string, topic, codec string, items []item) error {
	config := saramaConfig()
	if err := config.Producer.Compression.UnmarshalText([]byte(codec)); err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer(brokers, config)
	if err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, 0, len(items))
	for _, item := range items {
		message := &sarama.ProducerMessage{
			Topic: topic, Key: sarama.ByteEncoder(item.key), Value: sarama.ByteEncoder(item.value),
		}
		messages = append(messages, message)
	}
	return errors.Join(producer.SendMessages(messages), producer.Close())
}

func (saramaLibrary) consume(brokers []string, topic string, count int) error {
	consumer, err := sarama.NewConsumer(brokers, saramaConfig())
	if err != nil {
		return err
	}
	defer consumer.Close()
	messages := make(chan *sarama.ConsumerMessage)
	for partition := range int32(partitions) {
		reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		go func() {
			for message := range reader.Messages() {
				messages <- message
			}
		}()
		defer reader.AsyncClose()
	}
	for range count {
		message := <-messages
		fmt.Printf("%d\t%s\t%s\n", message.Partition, message.Key, message.Value)
	}
	return nil
}

// handler says what a group session of sarama is given.
type handler struct {
	topic string
}

func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	(&assignment{}).add(session.Claims()[h.topic])
	return nil
}

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		say(map[string]any{"p": message.Partition, "o": message.Offset, "v": string(message.Value)})
		session.MarkMessage(message, "")
	}
	return nil
}

func (saramaLibrary) member(ctx context.Context, brokers []string, topic, group string) error {
	member, err := sarama.NewConsumerGroup(brokers, group, saramaConfig())
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := member.Consume(ctx, []string{topic}, &handler{topic: topic})
		if err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return errors.Join(err, member.Close())
		}
	}
	return member.Close()
}
