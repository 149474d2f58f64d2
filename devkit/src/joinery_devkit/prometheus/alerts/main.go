// Command alerts reads a file of alerting rules, and series in the notation of promtool's unit tests from standard input.
// It evaluates the rules once a minute, and prints each alert that begins to fire: the minute, its name and its labels.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

type firing struct {
	Minute      int               `json:"minute"`
	Alert       string            `json:"alert"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func main() {
	if err := evaluate(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func evaluate(file, lastMinute string) error {
	last, err := strconv.Atoi(lastMinute)
	if err != nil {
		return err
	}
	alerts, err := load(file)
	if err != nil {
		return err
	}
	series, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	loader, err := promqltest.NewLazyLoader(string(series), promqltest.LazyLoaderOpts{EnableAtModifier: true})
	if err != nil {
		return err
	}
	defer loader.Close()
	fired := []firing{}
	begun := map[string]bool{}
	query := rules.EngineQueryFunc(loader.QueryEngine(), loader.Queryable())
	for minute := 0; minute <= last; minute++ {
		now := time.Unix(int64(60*minute), 0).UTC()
		var failed error
		loader.WithSamplesTill(now, func(err error) { failed = err })
		if failed != nil {
			return failed
		}
		for _, alert := range alerts {
			if _, err := alert.Eval(context.Background(), 0, now, query, nil, 0); err != nil {
				return fmt.Errorf("%s: %w", alert.Name(), err)
			}
			for _, active := range alert.ActiveAlerts() {
				key := alert.Name() + active.Labels.String()
				if active.State == rules.StateFiring && !begun[key] {
					begun[key] = true
					fired = append(fired, firing{minute, alert.Name(), active.Labels.Map(), active.Annotations.Map()})
				}
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(fired)
}

// As `promtool check rules`, which also reads the annotations' templates.
func load(file string) ([]*rules.AlertingRule, error) {
	expressions, log := parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler)
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, expressions, log)
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s: %v", file, errs)
	}
	var alerts []*rules.AlertingRule
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			expression, err := expressions.ParseExpr(rule.Expr)
			if err != nil {
				return nil, err
			}
			alerts = append(alerts, rules.NewAlertingRule(
				rule.Alert, expression, time.Duration(rule.For), time.Duration(rule.KeepFiringFor),
				labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations), labels.EmptyLabels(), "",
				true, log,
			))
		}
	}
	return alerts, nil
}
